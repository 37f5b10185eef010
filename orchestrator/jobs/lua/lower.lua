-- Lowers the wire version of a running job to the one that it needs: a release that could not read it
-- raised it, and after this attempt others may run it again. One whose journal names payloads stays
-- with the releases that can read them.
-- ARGV: prefix, id, token, version.
-- Returns 1, or 0 when the attempt no longer holds the job.
local id = ARGV[2]
if not held_job(id, ARGV[3]) then return 0 end
if redis.call('ZSCORE', key('journal', 'with_payloads'), id) then return 1 end
redis.call('HSET', key('job', id), 'wire', ARGV[4])
return 1
