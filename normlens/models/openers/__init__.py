"""One opener per kind of source; each answers None to a request that is not its own."""
