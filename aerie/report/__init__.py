"""Values turned into what people read: console tables, one HTML page, plots."""
