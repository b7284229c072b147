"""What a thread keeps beside the path: its fold, its watch, its recollection, how it is opened."""
