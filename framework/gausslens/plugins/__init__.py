"""The plugins that there are: ``load()`` is all that the rest of the host calls.

discover.py finds them by metadata, loading.py loads them one by one, check_descriptors.py looks at what they return;
host.py is what comes out. Nothing here imports a plugin by name.
"""

from .host import Broken as Broken
from .host import Host as Host
from .host import Plugin as Plugin
from .loading import load as load
from .loading import loading_troubles as loading_troubles
