-- Commits an attempt's result, once, and lists the children that it did not wait for to be
-- cancelled: nobody would take what they do.
-- ARGV: prefix, id, token, state, result, data for the journal, number of messages to the job that
-- the result accounts for (-1: not checked), 1 when its changes are collected later, else 0.
-- Returns 1, 0 when the attempt no longer holds the job, or 2 when the job has received more
-- messages.
even_if_full()

-- How many of the jobs that come after ended ones go on at once; the reaper goes on with the others.
local FOLLOWED_BY_AN_END = 10

local id, known = ARGV[2], tonumber(ARGV[7])
local job = held_job(id, ARGV[3])
if not job then return 0 end
if known >= 0 and redis.call('LLEN', key('messages', id)) > known then return 2 end
redis.call('HSET', key('job', id), 'ran_ms', job.ran)
finish(id, job.root, job.host, job.attempt, ARGV[4], ARGV[5], cjson.decode(ARGV[6]))
if ARGV[8] == '1' then redis.call('ZADD', key('uncollected'), now_ms(), id) end
list_for_cancellation(redis.call('SINTER', key('children', id), key('live')))
follow(FOLLOWED_BY_AN_END)
return 1
