"""Pages of HTML that need nothing else, with the plots in them."""
