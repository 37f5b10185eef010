-- Goes on with the links of new jobs to those after which they run, and follows the ends of these.
-- ARGV: prefix, maximum number of jobs that this ends or queues.
-- Returns 1 if there may be more.
even_if_full()
return follow(tonumber(ARGV[2])) and 1 or 0
