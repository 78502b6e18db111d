"""The gallery: what each shipped experiment learns, as pages that are written from results."""
