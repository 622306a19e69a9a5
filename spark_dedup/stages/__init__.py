"""One file per arrow of the diagram."""
