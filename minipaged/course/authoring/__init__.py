"""From the lessons' texts and the package to notebooks and the catalogue."""
