"""The store of jobs in Redis: the ledger, the journal, the queue and the rate limiter."""
