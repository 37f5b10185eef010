"""What the HTTP service keeps in Redis about requests: whose uploads, and how many."""
