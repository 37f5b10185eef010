"""How a sandbox comes to be open: started for a job, or ahead and adopted by one."""
