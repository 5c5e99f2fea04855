"""Tools for the tests of plugins: a pytest plugin, loaded wherever gausslens is installed, and so kept light."""

from __future__ import annotations
