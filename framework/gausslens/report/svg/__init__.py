"""Pictures on the page: axes, plots, maps of colours, and tokens beside their attention."""
