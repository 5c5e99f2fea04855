"""The store: immutable parts, run manifests, a derived index. schemas/STORE.md says what lies on disk.

In reading order: ``layout`` has names and places, ``disk`` durable files and locks, ``hdf5`` files being written,
``codec`` datasets as arrays and back, ``seal`` the end of each file, ``write`` parts, ``checks`` what is looked at
before anything is read, ``read`` parts as datasets, ``manifest`` what runs planned, ``index`` what of it is there,
``results`` and ``tables`` what users get, ``pack`` all of it in one file, ``maintain`` verifying and cleaning,
``bank`` copying from store to store.
"""

from .write_parts import Store as Store

__all__ = ["Store"]
