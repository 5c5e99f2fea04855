"""The store: immutable parts, run manifests, a derived index. schemas/STORE.md says what lies on disk.

``layout`` names and places; ``disk`` durable files; ``hdf5`` files being written; ``codec`` datasets as arrays and back;
``seal`` the end of each file; ``write`` parts; ``checks`` what is looked at before anything is read; ``read`` parts as
datasets; ``manifest`` what runs planned; ``index`` what is there; ``results`` and ``tables`` what users get; ``pack``
one file of all; ``maintain`` verifying and cleaning.
"""

from .write import Store as Store

__all__ = ["Store"]
