"""The commands that read a store or tend one."""
