"""Files of a store that came from elsewhere: what HDF5 makes of one is first seen in a process that may fail.

HDF5 trusts what it reads. A file made to harm, or changed by accident under a good seal, can keep it busy for ever
(Ctrl-C does not reach it), have it fill the memory, or end the process. Files that this user's own runs wrote are
remembered (``known``) and read at once. Any other is first read whole in a child with limits of time and memory
(``asking`` speaks to it, ``examining`` is what it does), once: then it is remembered too.
"""

from .asking import examined

__all__ = ["examined"]
