"""What preferring near workers costs and saves, by the bound."""
