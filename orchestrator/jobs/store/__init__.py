"""Jobs in Redis: the ledger, the journal, the queue and the limits of models."""
