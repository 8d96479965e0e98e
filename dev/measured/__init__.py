"""Parts of pages that are made from records of measurements."""
