"""What the HTTP service keeps in Redis about files: who has stored which snapshot."""
