-- What the scripts have in common. The workers and their slots are in fleet.lua.
-- The key names are those of keys.py, and these:
--   active:<root>    set: a tree's jobs in transit to a worker or running
--   tenant_active:<tenant>, agent_active:<agent>   sets: the same for a tenant, and for an agent
--   transit          sorted set: the jobs in transit to a worker, by wire version
--   held:<worker>    set: the jobs running on a worker
--   host:<host>      set: the jobs running on a host
--   tree:<root>      sorted set: all jobs of a tree by submission
--   owned:<owner>    sorted set: the jobs of an owner of a tenant, by submission
--   ended            sorted set: the ended jobs, by time of end
--   children:<job>   set: the jobs that a job submitted
--   awaited:<job>    set: the children for which a parked job waits
--   offspring:<root> number of children that the jobs of a tree have submitted, ended ones too
--   deadlines        sorted set: jobs that the reaper ends or resumes, by time: those whose time
--                    runs while they wait for nothing but children, and those whose worker has not
--                    yet confirmed a cancellation
--   answers:<user>:<approval>  string: the fingerprint of a user's answer to an approval
--   cancelling       list: jobs that remain to be cancelled with all their descendants
--   usage:<job>      hash: the usage of a job and its descendants; under a tree's root id, that of
--                    the whole tree
--   appended:<request>   string: the id of the event that a request appended; kept for a minute
--   worker:<name>    hash: a worker's registration, and when it started
--   pool:<pool>      set: the jobs of a pool that have not ended
--   pool_seen:<pool> string: present while a worker of a pool lives, or was killed and may be started
--                    again
--   lease_clock      hash: the clock of leases (elapsed), and the times of the script that advanced it
--                    last and of the last reaper
--   turn:<what>      string: present while one process has the turn at what one does for all
--   worker:!totals   hash: what all workers have counted, by the JSON of a series and its labels; no
--                    worker has such a name, and ACL files let clients read what begins so
--   worker:!spent:<minute>   hash: the tokens and dollars of a minute; kept for three
--   counted:<worker> string: the name of the worker's last addition to them
--   counted_models   set: the models that have totals of their own
--   policy           hash: the admission policy (json), and the start time of its worker
-- These came later, and are named so that the ACL files of earlier releases allow them to clients:
--   dispatch:state_counts  hash: how many jobs are in which state, and a recount: see `count_state`
--   dispatch:memory  hash: the bytes that Redis uses and its limit, whether it refuses new jobs, and
--                    when that was found out
--   dispatch:stored_jobs, dispatch:stored_bytes   hashes: how many jobs are stored and about how many
--                    bytes they take, by account: all; tenant:<tenant> and owner:<owner> for the jobs of
--                    callers
--   dispatch:calls:<job>   hash: a running job's calls of models that are not charged yet, and what each
--                    has reserved: see `read_call`
--   dispatch:reserved:<job>  hash: what the calls of a job and its descendants have reserved (tokens,
--                    nanodollars), and the limits that hold for them (max_tokens, max_nanodollars); under
--                    a tree's root id, of the whole tree
--   dispatch:starved sorted set: queued jobs that were given back because Redis had no memory left, by
--                    when they end if it still has none
--   dispatch:unlinked:<job>  set: the jobs after which a job runs, as far as nobody has looked whether they
--                    have ended
--   dispatch:linking list: the jobs that have such
--   dispatch:after:<job>     set: the jobs whose end a queued job awaits
--   dispatch:before:<job>    set: the queued jobs that await a job's end
--   dispatch:predecessors    sorted set: the jobs with such, by when to look whether they have ended: at
--                    once when they have
--   dispatch:answered:<call>   string: the newest job that has answered a call of a script, by the digest of
--                    the call; deleted with the job
--   journal:script:<job>     string: how a script stands, as its worker has summarised it
--   journal:payloads:<job>   hash: the long values in a job's journal, compressed, by the SHA-256 of each
--   journal:with_payloads    sorted set: the jobs that have them, by when it was last seen that they exist
-- Queued jobs wait in lanes. Trees and tenants at their limit take no turns, so that no dispatch
-- has to skip them. A class is <agent>:<wire version>, with a pool <agent>@<pool>:<wire version>.
-- A pool is the workers that have the settings and keys of the command that submitted a job; the
-- children of a job are of its pool. While none of them can run a job, those that started last do.
--   lane:<class>:<root>:<tenant>   sorted set: a tree's queued jobs of a class, next one first
--   lanes:<root>     set: <class>:<tenant> of a tree's lanes that are not empty
--   trees:<class>:<tenant>   sorted set: the trees with such lanes and room, least recently served
--                    first
--   tenants:<class>  sorted set: the tenants with such trees and room -> virtual time when each is
--                    due
--   classes          set: the classes with such tenants
--   classes:<tenant> set: the classes in which a tenant has trees that take turns, whether or not
--                    the tenant has room
--   full_trees, full_tenants   sets: those that reached their limit; released slots reopen them
--   dispatch:reopen:full_trees, dispatch:reopen:full_tenants   sets: those of them that are still to be
--                    reopened because a limit may be higher
--   dispatch:old_queues   sorted set: the queues of workers that take no messages, by when no message
--                    comes to them any more
--   turns            counter of dispatches: a tree's position among its tenant's trees
--   virtual_time     when the tenant served last was due (start-time fair queueing: a dispatch
--                    takes 1 / weight)
--   finish_times     sorted set: tenant -> virtual end of its last dispatch, if in the future
-- Notifications (webhooks, hooks) enter the outbox in the same step as what they are about:
--   notify:of:<job>          hash: the subscriptions to a job, as JSON by id
--   notify:hook              string: present while a process runs the installation's hook
--   notify:receivers         sorted set: receivers with notifications, by when to look at them next
--   notify:outbox:<receiver>   sorted set: its notifications, by when they are due
--   notify:sending:<receiver>  sorted set: those that a process sends now, by the end of its lease
--   notify:one:<id>          hash: a notification; kept for a week at most
--   notify:dead              stream: the newest notifications that were given up

-- The fields of a record that nobody reads after the job's end: half a KiB.
local OF_LIVE_JOBS = {so_far = true, token = true, dispatched = true, dispatches = true,
  sequence = true, max_attempts = true, ran_ms = true, files_host = true, claim = true,
  claimed_at = true, beat_at = true, requeued_at = true, cancel = true, cancel_told = true,
  lease_at = true, lease_of = true, activity = true, activity_at = true, awaited = true,
  wake_any = true, approvals_kept = true, last_message = true,
  unread_by = true, pool = true, sent_to = true, bound_to = true, host_faults = true,
  refusals = true, starved = true, path = true, model_wait = true, model_since = true,
  model_trial = true}

-- The values of a queued job's field `dispatched`: it waits in its lane, a message of it is in
-- transit to a worker, it rests outside of its lane until its entry in `leases` lapses, or it enters its
-- lane when the jobs have ended after which it runs.
local IN_LANE = '0'
local IN_TRANSIT = '1'
local RESTS = '2'
local COMES_AFTER = '3'

-- How long the jobs of a pool are kept for it when its worker was killed: a command that uses it
-- starts it again within that time, which takes ten seconds on a busy machine.
local POOL_KEPT_SECONDS = 30

-- How long a job rests that a worker could not read, while another one may be able to.
local REST_MS = 500

-- The same when all have tried. A new worker gets it by then; earlier releases, which take it for one
-- whose message was lost, add an event to its journal each time.
local LONG_REST_MS = 10000

-- The most workers that a job lists which could not read it.
local MOST_LISTED = 500

-- The most events of a journal that is copied when its job ends: of a longer one, 4 KiB are little.
local SHORT_JOURNAL = 32

-- Lets the rest of a script write although Redis has no memory left. Redis checks that before the
-- first write of a script, and here that is one which cannot need memory. Scripts that renew, end or
-- delete begin with this: with no room for new jobs, running ones must continue and be recorded.
local function even_if_full() redis.call('DEL', key('nothing')) end

local function publish(id) redis.call('PUBLISH', key('bell', id), id) end

-- Returns the id of a job's first event: that it was submitted, and is queued. That event is in the
-- record only until a second one is added: a stream takes 5 KiB however short it is, and most jobs
-- of a large tree wait. journal.py reads it there.
local function first_event(submitted_at) return submitted_at .. '-0' end

-- What Redis needs for a job besides its texts, and for an event: record, indexes, nodes.
local JOB_BYTES = 1500
local EVENT_BYTES = 100

-- The end of the index of the operator's own jobs in a tenant (stored.owner_key).
local OF_OPERATOR = ', "operator"]'

-- Returns the accounts in which a job counts: that of all jobs, and of a caller's job those of its
-- tenant and its owner. `owned` is the index of its owner ('' or false: it has none).
local function accounts(owned)
  if not owned or owned == '' or string.sub(owned, -#OF_OPERATOR) == OF_OPERATOR then
    return {'all'}
  end
  return {'all', 'tenant:' .. cjson.decode(owned)[1], 'owner:' .. owned}
end

-- Counts jobs and bytes that are stored, or deleted, in all accounts of their owner.
local function count_stored(owned, jobs, bytes)
  for _, account in ipairs(accounts(owned)) do
    if jobs ~= 0 then redis.call('HINCRBY', key('dispatch', 'stored_jobs'), account, jobs) end
    redis.call('HINCRBY', key('dispatch', 'stored_bytes'), account, bytes)
  end
end

-- Counts bytes that are stored of a job, in its record too: as many are subtracted in the end.
local function count_bytes(id, bytes)
  local job = redis.call('HMGET', key('job', id), 'state', 'owned')
  if not job[1] then return end
  redis.call('HINCRBY', key('job', id), 'bytes', bytes)
  count_stored(job[2], 0, bytes)
end

-- Adds an event to a job's journal, publishes that it changed, and returns the event's id; the data
-- is JSON.
local function add_event(id, attempt, kind, data)
  local stream = key('journal', id)
  local event = redis.call('XADD', stream, 'NOMKSTREAM', '*', 'type', kind, 'attempt', attempt,
    'data', data)
  if not event then
    local submitted_at = redis.call('HGET', key('job', id), 'submitted_at')
    if submitted_at then
      redis.call('XADD', stream, first_event(submitted_at), 'type', 'job.state', 'attempt', 0,
        'data', '{"state":"queued"}')
    end
    event = redis.call('XADD', stream, '*', 'type', kind, 'attempt', attempt, 'data', data)
  end
  count_bytes(id, #data + EVENT_BYTES)
  publish(id)
  return event
end

-- Returns a job's specification, or its result: a field of its record, where all releases read it,
-- or a key of its own, where those of layout 2 have written it: see tests/faults/releases.toml.
local function text_of(kind, id)
  return redis.call('HGET', key('job', id), kind) or redis.call('GET', key(kind, id))
end

-- Copies a job's specification into its record, if it is not there: the next process that handles
-- the job may be of any release. Its key stays for those who have just not found it in the record.
local function adopt(id)
  if redis.call('HEXISTS', key('job', id), 'spec') == 1 then return end
  local spec = redis.call('GET', key('spec', id))
  if spec then redis.call('HSET', key('job', id), 'spec', spec) end
end

-- Deletes the fields of an ended job's record that nobody reads any more. It is written again: the
-- table of a hash does not shrink when it is half empty.
local function shrink_record(id)
  local record, kept = redis.call('HGETALL', key('job', id)), {}
  for at = 1, #record, 2 do
    if not OF_LIVE_JOBS[record[at]] then
      kept[#kept + 1] = record[at]
      kept[#kept + 1] = record[at + 1]
    end
  end
  redis.call('DEL', key('job', id))
  redis.call('HSET', key('job', id), unpack(kept))
end

-- Releases the memory that a journal's stream has allocated for further entries: up to 4 KiB, in
-- its last node, which is all of a short journal. The copy of a stream has none.
local function shrink_journal(id)
  local stream, copy = key('journal', id), key('nothing')
  if redis.call('XLEN', stream) <= SHORT_JOURNAL then
    redis.call('COPY', stream, copy, 'REPLACE')
    redis.call('RENAME', copy, stream)
  end
end

-- Counts a job in its next state instead of its present one; without a next one it is deleted.
-- Releases before this one do not count, so there is a recount (state_counts.lua), in steps in the
-- order of submission: the jobs that it has reached are counted in fields of their own.
local function count_state(id, state)
  local counts, before = key('dispatch', 'state_counts'), redis.call('HGET', key('job', id), 'state')
  local reached = tonumber(redis.call('HGET', counts, 'reached') or 0)
  local position = tonumber(redis.call('ZSCORE', key('jobs'), id) or 0)
  local part = position <= reached and 'recounted:' or 'counted:'
  if before then redis.call('HINCRBY', counts, part .. before, -1) end
  if state then redis.call('HINCRBY', counts, part .. state, 1) end
end

local ENDED = {succeeded = true, failed = true, timed_out = true, cancelled = true}

-- The most characters of a record's timeline: some hundred changes. Of a longer one the oldest go.
local LONGEST_TIMELINE = 3000

-- Adds to the timeline of a job, from which a view of its tree shows when it was in which state
-- without reading its journal: what begins now, or what has ended now and its values (timeline.py
-- reads it). What continues is not entered again.
local function mark(id, what, ...)
  local marks = redis.call('HGET', key('job', id), 'timeline') or ''
  if string.match(marks, '(%a+):%d+$') == what then return end
  marks = marks .. ' ' .. table.concat({what, now_ms(), ...}, ':')
  if #marks > LONGEST_TIMELINE then marks = string.gsub(marks, '^ [^ ]*', '') end
  redis.call('HSET', key('job', id), 'timeline', marks)
end

-- Counts, in the record of its tree's root, what went wrong with a job that another one submitted.
local function count_at_root(id, what, by)
  local root = redis.call('HGET', key('job', id), 'root')
  if root and redis.call('EXISTS', key('job', root)) == 1 then
    redis.call('HINCRBY', key('job', root), what, by)
    publish(root)
  end
end

-- The receiver name of the installation's hook: no host has such a name.
local HOOK = '!hook'

-- Adds a notification to a receiver's outbox: what happened (a state, or 'approval') to the job
-- `source`, which is the subscribed job or one below it. The same event has the same id.
local function enter_outbox(receiver, job, subscription, what, source, event)
  local now = now_ms()
  local id = redis.sha1hex(table.concat({job, source, event, what, subscription}, ' '))
  local one = key('notify', 'one', id)
  redis.call('HSET', one, 'job', job, 'subscription', subscription, 'what', what,
    'source', source, 'at', now, 'tries', 0)
  redis.call('EXPIRE', one, 604800)
  redis.call('ZADD', key('notify', 'outbox', receiver), now, id)
  redis.call('ZADD', key('notify', 'receivers'), 'LT', now, receiver)
end

-- Returns whether a subscription asks for what happened.
local function asks_for(subscription, what)
  for _, event in ipairs(subscription.events) do
    if event == what or (event == 'state' and what ~= 'approval')
        or (event == 'end' and ENDED[what]) then
      return true
    end
  end
  return false
end

-- Returns whether somebody may have asked for what happens to these jobs.
local function are_subscribed(ids)
  local of = {}
  for at, id in ipairs(ids) do of[at] = key('notify', 'of', id) end
  return redis.call('EXISTS', key('notify', 'hook'), unpack(of)) > 0
end

-- Notifies those who asked for it of what happened to a job, or to a job below it. A job that
-- nobody subscribed to costs one command.
local function notify(id, what, event, source)
  if not are_subscribed({id}) then return end
  local of = key('notify', 'of', id)
  local stored = redis.call('HGETALL', of)
  if #stored > 0 then redis.call('PERSIST', of) end
  for index = 1, #stored, 2 do
    local subscription = cjson.decode(stored[index + 1])
    if asks_for(subscription, what) then
      enter_outbox(subscription.receiver, id, stored[index], what, source, event)
    end
  end
  if id ~= source or redis.call('EXISTS', key('notify', 'hook')) == 0 then return end
  local ends = ENDED[what] and redis.call('HGET', key('job', id), 'parent') == ''
  if ends or what == 'approval' then enter_outbox(HOOK, id, '', what, source, event) end
end

local function journal(id, attempt, data)
  redis.call('HSET', key('job', id), 'last_event', data.state)
  if not ENDED[data.state] then mark(id, data.state) end
  notify(id, data.state, add_event(id, attempt, 'job.state', cjson.encode(data)), id)
end

-- Ends the wait for an approval. The decision is kept for some time, the request is deleted.
local function settle(approval, decision, request, kept_seconds)
  redis.call('HSET', key('approval', approval), 'decision', decision, 'answered_in', request)
  redis.call('HDEL', key('approval', approval), 'request')
  redis.call('EXPIRE', key('approval', approval), kept_seconds)
  redis.call('ZREM', key('approvals'), approval)
end

-- Withdraws the open approvals of a job that no longer waits; they cannot be answered any more.
local function withdraw_approvals(id)
  local job = redis.call('HMGET', key('job', id), 'approvals', 'approvals_kept')
  for approval in string.gmatch(job[1] or '', '%S+') do
    settle(approval, 'withdrawn', '', job[2])
  end
  redis.call('HDEL', key('job', id), 'waiting_for', 'approvals')
end

local function class_name(agent, pool, wire)
  return agent .. (pool and pool ~= '' and '@' .. pool or '') .. ':' .. wire
end

-- Returns the fields that decide about a job's position in the queue.
local function queue_fields(id)
  local job = redis.call('HMGET', key('job', id), 'tenant', 'agent', 'wire', 'priority', 'sequence',
    'worker', 'pool', 'bound_to', 'path')
  return {tenant = job[1], agent = job[2], class = class_name(job[2], job[7], job[3]),
    priority = job[4], sequence = job[5], worker = job[6], pool = job[7] or '', bound_to = job[8],
    path = job[9]}
end

-- Returns when a tenant is due: from its last finish time or now. An idle tenant saves up no turns.
local function due_time(tenant)
  return math.max(tonumber(redis.call('GET', key('virtual_time')) or 0),
    tonumber(redis.call('ZSCORE', key('finish_times'), tenant) or 0))
end

-- Lets a tenant take turns in classes.
local function offer_tenant(tenant, classes)
  if redis.call('SISMEMBER', key('full_tenants'), tenant) == 1 then return end
  local due = due_time(tenant)
  for _, class in ipairs(classes) do
    redis.call('ZADD', key('tenants', class), 'NX', due, tenant)
  end
  add_classes(classes)
end

local function withdraw_tenant(tenant, class)
  redis.call('ZREM', key('tenants', class), tenant)
  if redis.call('EXISTS', key('tenants', class)) == 0 then remove_class(class) end
end

-- Appends one or two values to the list of a name, among lists by name.
local function append(lists, name, first, second)
  local list = lists[name] or {}
  list[#list + 1] = first
  list[#list + 1] = second
  lists[name] = list
end

-- Lets the trees of lanes take turns in their tenants: behind the trees that wait already, and ahead of
-- those that are served from now on. A lane is {root =, class =, tenant =}.
local function offer_trees(lanes)
  local turn, entries_of, classes_of = redis.call('GET', key('turns')) or 0, {}, {}
  for _, lane in ipairs(lanes) do
    local trees = key('trees', lane.class, lane.tenant)
    if not entries_of[trees] then append(classes_of, lane.tenant, lane.class) end
    append(entries_of, trees, turn, lane.root)
  end
  for tenant, classes in pairs(classes_of) do
    local offered = {}
    for _, class in ipairs(classes) do
      local trees = key('trees', class, tenant)
      if redis.call('ZADD', trees, 'NX', unpack(entries_of[trees])) > 0 then
        offered[#offered + 1] = class
      end
    end
    in_parts(offered, function(...) redis.call('SADD', key('classes', tenant), ...) end)
    if #offered > 0 then offer_tenant(tenant, offered) end
  end
end

local function withdraw_tree(root, class, tenant)
  if redis.call('ZREM', key('trees', class, tenant), root) == 1
      and redis.call('EXISTS', key('trees', class, tenant)) == 0 then
    redis.call('SREM', key('classes', tenant), class)
    withdraw_tenant(tenant, class)
  end
end

-- Lets a tree that was at its limit take turns again.
local function open_tree(root)
  if redis.call('SREM', key('full_trees'), root) == 0 then return end
  local lanes = {}
  for at, lane in ipairs(redis.call('SMEMBERS', key('lanes', root))) do
    local class, tenant = string.match(lane, '^([^:]*:[^:]*):(.*)$')
    lanes[at] = {root = root, class = class, tenant = tenant}
  end
  offer_trees(lanes)
end

-- Lets a tenant that was at its limit take turns again.
local function open_tenant(tenant)
  if redis.call('SREM', key('full_tenants'), tenant) == 1 then
    offer_tenant(tenant, redis.call('SMEMBERS', key('classes', tenant)))
  end
end

-- How many trees and tenants at their limit take turns again at once when a limit may be higher.
local MOST_REOPENED = 50

-- Lists the trees and tenants at their limit to take turns again.
local function list_to_reopen()
  for _, kind in ipairs({'full_trees', 'full_tenants'}) do
    local listed = key('dispatch', 'reopen', kind)
    redis.call('SUNIONSTORE', listed, listed, key(kind))
  end
end

-- Lets some of the listed trees and tenants take turns again. Returns whether there may be more.
local function reopen(most)
  local trees = redis.call('SPOP', key('dispatch', 'reopen', 'full_trees'), most)
  local tenants = redis.call('SPOP', key('dispatch', 'reopen', 'full_tenants'), most)
  for _, root in ipairs(trees) do open_tree(root) end
  for _, tenant in ipairs(tenants) do open_tenant(tenant) end
  return #trees == most or #tenants == most
end

-- The most jobs of a path that count: less than one step of priority.
local LONGEST_PATH = 99999

-- Returns a queued job's position in its lane: by priority, by the number of jobs on the longest path of
-- those that come after it, and by age.
local function position(priority, sequence, path)
  return sequence - math.min(path or 0, LONGEST_PATH) * 1e7 - priority * 1e12
end

-- Adds queued jobs to some lanes; `entries` of a lane has the position and the id of each.
local function fill_lanes(lanes)
  local roots = {}
  for at, lane in ipairs(lanes) do
    redis.call('ZADD', key('lane', lane.class, lane.root, lane.tenant), unpack(lane.entries))
    redis.call('SADD', key('lanes', lane.root), lane.class .. ':' .. lane.tenant)
    roots[at] = lane.root
  end
  local open = with_flag(lanes, are_members(key('full_trees'), roots), 0)
  if #open > 0 then offer_trees(open) end
end

local function enter_lane(id, root)
  adopt(id)
  local job = queue_fields(id)
  fill_lanes({{root = root, class = job.class, tenant = job.tenant,
    entries = {position(job.priority, job.sequence, job.path), id}}})
end

-- Removes a job from its lane, if it is in it.
local function leave_lane(id, root, class, tenant)
  local lane = key('lane', class, root, tenant)
  if redis.call('ZREM', lane, id) == 1 and redis.call('EXISTS', lane) == 0 then
    redis.call('SREM', key('lanes', root), class .. ':' .. tenant)
    withdraw_tree(root, class, tenant)
  end
end

-- Returns the jobs to which is charged what a job uses: itself and those above it, as far as they exist,
-- and its tree.
local function charged_to(id)
  local root, ids, has_root = redis.call('HGET', key('job', id), 'root'), {}, false
  while id and id ~= '' do
    local above = redis.call('HMGET', key('job', id), 'root', 'parent')
    if not above[1] then break end
    ids[#ids + 1] = id
    has_root = has_root or id == root
    id = above[2]
  end
  if root and not has_root then ids[#ids + 1] = root end
  return ids
end

-- A call as it is stored: its input tokens, its output tokens, their price in billionths of a dollar,
-- whether it was answered (then these are what it used, not what it may use), and its model.
local function read_call(stored)
  local input, output, nanodollars, answered, model = string.match(stored,
    '^(%d+) (%d+) (%d+) (%d) (.*)$')
  return {input = tonumber(input), output = tonumber(output), nanodollars = tonumber(nanodollars),
    is_answered = answered == '1', model = model}
end

local function write_call(call)
  return string.format('%.0f %.0f %.0f %d %s', call.input, call.output, call.nanodollars,
    call.is_answered and 1 or 0, call.model)
end

-- Reserves what a call may use of all budgets above it; with -1 it is free again.
local function hold(ids, call, sign)
  for _, id in ipairs(ids) do
    local reserved = key('dispatch', 'reserved', id)
    -- Zero is added because Redis takes no negative one.
    redis.call('HINCRBY', reserved, 'tokens', sign * (call.input + call.output) + 0)
    redis.call('HINCRBY', reserved, 'nanodollars', sign * call.nanodollars + 0)
  end
end

-- Charges what a call has used and no event of a journal reports.
local function spend(ids, call)
  local used = {input_tokens = call.input, output_tokens = call.output,
    cost_usd = string.format('%.9f', call.nanodollars / 1e9)}
  for _, id in ipairs(ids) do
    for name, amount in pairs(used) do
      if tonumber(amount) > 0 then
        redis.call('HINCRBYFLOAT', key('usage', id), name, amount)
        redis.call('HINCRBYFLOAT', key('usage', id), name .. '@' .. call.model, amount)
      end
    end
  end
end

-- Charges what the calls of an attempt had reserved that ends before they did: nobody knows what they
-- have used.
local function lapse_calls(id)
  local calls = redis.call('HVALS', key('dispatch', 'calls', id))
  if #calls == 0 then return end
  local ids = charged_to(id)
  for _, stored in ipairs(calls) do
    local call = read_call(stored)
    hold(ids, call, -1)
    spend(ids, call)
  end
  redis.call('DEL', key('dispatch', 'calls', id))
end

-- Releases all slots that an attempt, or a job in transit, holds; its time does not run any more.
local function release_slots(id, root, host)
  end_work(id)
  lapse_calls(id)
  local job = queue_fields(id)
  redis.call('ZREM', key('leases'), id)
  redis.call('ZREM', key('transit'), id)
  redis.call('SREM', key('active', root), id)
  redis.call('SREM', key('tenant_active', job.tenant), id)
  redis.call('SREM', key('agent_active', job.agent), id)
  if job.worker and job.worker ~= '' and redis.call('SREM', key('held', job.worker), id) == 1 then
    count_free(job.worker)
  end
  if host and host ~= '' and redis.call('SREM', key('host', host), id) == 1 then open_host(host) end
  if job.bound_to then
    unbind(id, job.bound_to)
    redis.call('HDEL', key('job', id), 'bound_to')
    count_free(job.bound_to)
  end
  open_agent(job.agent)
  open_tree(root)
  open_tenant(job.tenant)
end

-- Lets a job that waits in no lane wait in its own again.
local function return_to_lane(id, root)
  release_slots(id, root)
  redis.call('HSET', key('job', id), 'dispatched', IN_LANE)
  enter_lane(id, root)
end

-- The most jobs that are taken back at once.
local MOST_TAKEN_BACK = 50

-- Takes jobs back that are in transit to a worker, which does not take them, or not all: they wait
-- again, and go to others.
local function take_back(worker, most)
  correct_bound(worker)
  local ids = redis.call('SMEMBERS', key('dispatch', 'bound', worker))
  table.sort(ids)
  for at = 1, math.min(most, #ids) do
    return_to_lane(ids[at], redis.call('HGET', key('job', ids[at]), 'root'))
  end
end

-- Lets a claimed job occupy a slot on its worker and host. A worker that has got jobs which others
-- have sent to all, or more than it takes by now, leaves those that were sent to it to the others.
local function occupy(id, worker, host)
  redis.call('ZREM', key('transit'), id)
  redis.call('SADD', key('held', worker), id)
  redis.call('SADD', key('host', host), id)
  local bound_to = redis.call('HGET', key('job', id), 'bound_to')
  if bound_to then
    unbind(id, bound_to)
    redis.call('HDEL', key('job', id), 'bound_to')
  end
  if bound_to == worker then return end
  if bound_to then count_free(bound_to) end
  local free = count_free(worker)
  if free < 0 then take_back(worker, math.min(-free, MOST_TAKEN_BACK)) end
end

-- How long what Redis says of its memory is believed: it takes 50 µs to find out.
local MEMORY_MS = 1000

-- The marks and shares by which new jobs are refused while no worker has registered others: those of
-- StorageShares in policy.py.
local STORAGE = {refuse_at = 0.9, accept_at = 0.85, tenant_jobs = 50000, owner_jobs = 20000,
  tenant_part = 0.5, owner_part = 0.25}

-- Returns the marks and shares of the installation, and those of single tenants.
local function storage_policy()
  local policy = cjson.decode(redis.call('HGET', key('policy'), 'json') or '{}')
  return setmetatable(policy.storage or {}, {__index = STORAGE}), policy.tenants or {}
end

-- Returns the bytes that Redis uses and those that it may use (0: as many as there are), and whether
-- it refuses new jobs: from one mark on until another one is reached again.
local function memory()
  local now = now_ms()
  local known = redis.call('HMGET', key('dispatch', 'memory'), 'at', 'used', 'limit', 'refuses')
  if known[1] and math.abs(now - known[1]) < MEMORY_MS then
    return {used = tonumber(known[2]), limit = tonumber(known[3]), refuses = known[4] == '1'}
  end
  local info = redis.pcall('INFO', 'memory')
  local function number(name)
    local found = type(info) == 'string' and string.match(info, '\n' .. name .. ':(%d+)')
    return tonumber(found or 0)
  end
  local limit, refuses = number('maxmemory'), known[4] == '1'
  local used, storage = number('used_memory') - number('mem_not_counted_for_evict'), storage_policy()
  if used >= storage.refuse_at * limit then refuses = limit > 0 end
  if used < storage.accept_at * limit or limit == 0 then refuses = false end
  -- A Redis without memory does not keep this, and says so when a job is stored.
  redis.pcall('HSET', key('dispatch', 'memory'), 'at', now, 'used', used, 'limit', limit, 'refuses',
    refuses and 1 or 0)
  return {used = used, limit = limit, refuses = refuses}
end

-- Returns why Redis accepts no new jobs; nil when it does.
local function why_full()
  local found = memory()
  if not found.refuses then return nil end
  if found.used >= found.limit then
    return 'Redis has no memory left, so nothing new is stored'
  end
  return string.format('Redis holds %d %% of its limit of %d MiB, and accepts new jobs below %d %%',
    math.floor(100 * found.used / found.limit), math.floor(found.limit / 1048576),
    math.floor(100 * storage_policy().accept_at))
end

-- Returns a submission, which is two values in ARGV from `first` on: the fields of `Submission` in
-- stored.py as JSON, and the specification.
local function submission(first)
  local job = cjson.decode(ARGV[first])
  job.spec = ARGV[first + 1]
  return job
end

-- Returns how many jobs and bytes (0: as many as there are) may be stored of an account, whose it
-- is, and the settings that say so.
local function share_characters(account)
  local storage, tenants = storage_policy()
  local limit = memory().limit
  local tenant = string.match(account, '^tenant:(.*)$')
  if tenant then
    local own, setting = tenants[tenant] or {}, 'FANOUT_TENANTS'
    return {whose = 'Tenant ' .. tenant, jobs = own.kept_jobs or storage.tenant_jobs,
      bytes = own.kept_bytes or storage.tenant_bytes or math.floor(storage.tenant_part * limit),
      jobs_by = own.kept_jobs and setting or 'FANOUT_STORAGE__TENANT_JOBS',
      bytes_by = own.kept_bytes and setting or 'FANOUT_STORAGE__TENANT_BYTES'}
  end
  local names = cjson.decode(string.match(account, '^owner:(.*)$'))
  return {whose = 'Owner ' .. names[2] .. ' of tenant ' .. names[1], jobs = storage.owner_jobs,
    bytes = storage.owner_bytes or math.floor(storage.owner_part * limit),
    jobs_by = 'FANOUT_STORAGE__OWNER_JOBS', bytes_by = 'FANOUT_STORAGE__OWNER_BYTES'}
end

-- Returns why these new jobs are not accepted, with others that the next calls store (`later`: their
-- number by the index of their owner); nil when they are. The second value says whose limit
-- it is: '' for that of Redis.
local function why_refused(jobs, later)
  local full = why_full()
  if full then return full, '' end
  local by_owner, new = later or {}, {}
  for _, job in ipairs(jobs) do by_owner[job.owned] = (by_owner[job.owned] or 0) + 1 end
  for owned, count in pairs(by_owner) do
    for at, account in ipairs(accounts(owned)) do
      if at > 1 then new[account] = (new[account] or 0) + count end
    end
  end
  for account, count in pairs(new) do
    local stored = tonumber(redis.call('HGET', key('dispatch', 'stored_jobs'), account) or 0)
    local bytes = tonumber(redis.call('HGET', key('dispatch', 'stored_bytes'), account) or 0)
    local share = share_characters(account)
    local why
    if stored + count > share.jobs then
      why = string.format('%d jobs stored, and may have %d (%s)', stored, share.jobs, share.jobs_by)
    elseif share.bytes > 0 and bytes >= share.bytes then
      why = string.format('%d MiB of jobs stored, and may have %d (%s)', bytes / 1048576,
        share.bytes / 1048576, share.bytes_by)
    end
    if why then return share.whose .. ' has ' .. why, account end
  end
end

-- Returns the score of an id in the index by ends: its last characters, the very last one first, as
-- a number; id_search.py searches by it. Redis compares scores faster than texts.
local function end_score(id)
  local score = 0
  for at = 1, 7 do score = score * 128 + (string.byte(id, -at) or 0) end
  return score
end

-- What Redis needs for each job after which a new one runs.
local EDGE_BYTES = 150

-- The most characters of these jobs' ids in a record: it shows the first thousand of them.
local SHOWN_AFTER = 27000

-- Notes after which jobs a new one runs. It enters its lane when they have ended (graph.lua).
local function come_after(id, job)
  in_parts(job.after, function(...) redis.call('SADD', key('dispatch', 'unlinked', id), ...) end)
  redis.call('RPUSH', key('dispatch', 'linking'), id)
  local shown = string.sub(table.concat(job.after, ' '), 1, SHOWN_AFTER)
  redis.call('HSET', key('job', id), 'dispatched', COMES_AFTER, 'on_failure', job.on_failure, 'after',
    #shown < SHOWN_AFTER and shown or string.gsub(shown, ' [^ ]*$', ''))
end

-- Stores and queues new jobs, in their order. What several of them enter is written once. `group` is
-- the id that the trees which are submitted together have in common ('': there is one).
local function enqueue(jobs, group)
  local now, last = now_ms(), redis.call('INCRBY', key('sequence'), #jobs)
  local indexes, sets, ids, lanes, lane_of, stored = {}, {}, {}, {}, {}, {}
  for number, job in ipairs(jobs) do
    local id, sequence = job.id, last - #jobs + number
    local bytes = JOB_BYTES + #job.spec + 2 * #job.idempotency + EDGE_BYTES * #job.after
    redis.call('HSET', key('job', id), 'spec', job.spec, 'state', 'queued', 'last_event', 'queued',
      'root', job.root, 'parent', job.parent, 'priority', job.priority,
      'max_attempts', job.max_attempts, 'sequence', sequence, 'attempt', 0, 'token', 0,
      'dispatched', 0, 'ran_ms', 0, 'submitted_at', now, 'tenant', job.tenant, 'agent', job.agent,
      'wire', job.wire, 'bytes', bytes)
    ids[number] = id
    append(stored, job.owned, bytes)
    append(indexes, key('jobs'), sequence, id)
    append(indexes, key('tree', job.root), sequence, id)
    append(indexes, key('ids'), 0, id)
    append(indexes, key('ids_by_end'), end_score(id), id)
    append(sets, key('live'), id)
    if job.parent ~= '' then append(sets, key('children', job.parent), id) end
    if job.owned ~= '' then
      append(indexes, key('owned', job.owned), sequence, id)
      redis.call('HSET', key('job', id), 'owned', job.owned)
    end
    if job.idempotency ~= '' then
      redis.call('SET', key('idempotency', job.idempotency), id)
      redis.call('HSET', key('job', id), 'idempotency', job.idempotency)
    end
    if job.pool and job.pool ~= '' then
      append(sets, key('pool', job.pool), id)
      redis.call('HSET', key('job', id), 'pool', job.pool)
    end
    if group ~= '' and job.root == id then  -- those of one tree are known by its root
      redis.call('HSET', key('job', id), 'batch', group)
    end
    if job.name ~= '' then redis.call('HSET', key('job', id), 'name', job.name) end
    if job.path > 0 then redis.call('HSET', key('job', id), 'path', job.path) end
    if #job.after > 0 then
      come_after(id, job)
    else
      local class = class_name(job.agent, job.pool, job.wire)
      local name = key('lane', class, job.root, job.tenant)
      if not lane_of[name] then
        lane_of[name] = {root = job.root, class = class, tenant = job.tenant}
        lanes[#lanes + 1] = lane_of[name]
      end
      append(lane_of[name], 'entries', position(job.priority, sequence, job.path), id)
    end
  end
  redis.call('HINCRBY', key('dispatch', 'state_counts'), 'counted:queued', #jobs)
  for owned, sizes in pairs(stored) do
    local sum = 0
    for _, bytes in ipairs(sizes) do sum = sum + bytes end
    count_stored(owned, #sizes, sum)
  end
  for index, entries in pairs(indexes) do redis.call('ZADD', index, unpack(entries)) end
  for set, members in pairs(sets) do redis.call('SADD', set, unpack(members)) end
  fill_lanes(lanes)
  for _, id in ipairs(ids) do publish(id) end
  if are_subscribed(ids) then
    for _, id in ipairs(ids) do notify(id, 'queued', first_event(now), id) end
  end
end

-- Makes a job a queued one, without a worker.
local function set_queued(id)
  leave_models(id)
  -- What wakes up for anything (wake_any) still waits for its other approvals.
  if not redis.call('HGET', key('job', id), 'wake_any') then
    redis.call('HDEL', key('job', id), 'approvals')
  end
  redis.call('HDEL', key('job', id), 'waiting_for', 'wake_any')
  count_state(id, 'queued')
  redis.call('HSET', key('job', id), 'state', 'queued', 'dispatched', IN_LANE, 'token', 0,
    'worker', '', 'host', '', 'requeued_at', now_ms())
end

-- Requeues a job at its previous position.
local function requeue(id, root, attempt, reason)
  set_queued(id)
  enter_lane(id, root)
  journal(id, attempt, {state = 'queued', reason = reason})
end

-- Adds to a job's journal that a child of it has ended, or was refused and why.
local function report_child(parent, id, state, reason)
  local attempt = redis.call('HGET', key('job', parent), 'attempt')
  local data = cjson.encode({id = id, state = state, reason = reason})
  add_event(parent, attempt, 'child.finished', data)
end

-- Stores a child of a running job, as `held_job` returns it, if it is new; `entry` is for the
-- parent's journal. Returns its state; or nil, and why it is refused.
local function store_child(child, entry, parent, job, most, most_of_tree)
  local state = redis.call('HGET', key('job', child.id), 'state')
  if state then return state end
  if redis.call('SCARD', key('children', parent)) >= most then
    return nil, 'a job may have ' .. most .. ' children (FANOUT_LIMITS__MAX_CHILDREN)'
  end
  if tonumber(redis.call('GET', key('offspring', job.root)) or 0) >= most_of_tree then
    return nil, 'a tree may have ' .. most_of_tree .. ' (FANOUT_LIMITS__MAX_TREE_CHILDREN)'
  end
  local why = why_refused({child})
  if why then return nil, why .. '; do the work yourself, or try again later' end
  redis.call('INCR', key('offspring', job.root))
  child.root, child.parent = job.root, parent
  child.pool = redis.call('HGET', key('job', parent), 'pool') or ''
  enqueue({child}, '')
  add_event(parent, job.attempt, 'child.submitted', entry)
  return 'queued'
end

-- Updates how many children a parked job waits for. When none is left, requeues the job, unless it
-- waits for a person too. A job that wakes up for anything (wake_any: in how many milliseconds at
-- the latest) does not wait for the others.
local function count_children(id)
  local job = redis.call('HMGET', key('job', id), 'state', 'root', 'attempt', 'approvals',
    'awaited', 'wake_any')
  if job[1] ~= 'waiting' or (job[4] ~= '' and not job[6]) then return end
  local open = redis.call('SCARD', key('awaited', id))
  if (open == 0 and job[4] == '') or job[6] == '0' then
    redis.call('DEL', key('awaited', id))
    stop_clock(id)
    requeue(id, job[2], job[3], 'what it waited for is done')
  else
    if job[4] == '' then resume_clock(id) end
    local ended = job[5] - open
    redis.call('HSET', key('job', id), 'waiting_for', 'children: ' .. ended .. ' of ' .. job[5])
    if job[6] then wake_in(id, job[6]) end
  end
end

-- Reports the end of a job to the parent that waits for it.
local function notify_parent(id, state)
  local parent = redis.call('HGET', key('job', id), 'parent')
  if not parent or parent == '' then return end
  if state == 'failed' or state == 'timed_out' then count_at_root(id, 'tasks_failed', 1) end
  if redis.call('SREM', key('awaited', parent), id) == 1 then
    report_child(parent, id, state)
    count_children(parent)
  end
end

-- Ends a job. The caller has checked that it has not ended yet.
local function finish(id, root, host, attempt, state, result, data)
  release_slots(id, root, host)
  withdraw_approvals(id)
  local job = queue_fields(id)
  leave_lane(id, root, job.class, job.tenant)
  redis.call('SREM', key('live'), id)
  if job.pool ~= '' then redis.call('SREM', key('pool', job.pool), id) end
  redis.call('ZREM', key('deadlines'), id)
  redis.call('ZREM', key('dispatch', 'starved'), id)
  redis.call('ZADD', key('ended'), now_ms(), id)
  leave_models(id)
  redis.call('DEL', key('messages', id), key('awaited', id), key('dispatch', 'working', id))
  redis.call('UNLINK', key('dispatch', 'after', id), key('dispatch', 'unlinked', id))
  redis.call('ZADD', key('dispatch', 'predecessors'), 'XX', 0, id)
  adopt(id)
  count_state(id, state)
  redis.call('HSET', key('job', id), 'state', state, 'result', result, 'finished_at', now_ms())
  count_bytes(id, #result)
  data.state = state
  journal(id, attempt, data)
  shrink_record(id)
  shrink_journal(id)
  redis.call('PUBLISH', key('bell', id, 'ended'), id)
  notify_parent(id, state)
end

-- Returns whether a worker's list of agent names includes an agent; an empty list includes all.
local function knows(agents, agent)
  return agents == '' or string.find(' ' .. agents .. ' ', ' ' .. agent .. ' ', 1, true) ~= nil
end

-- Returns whether a worker is in a list of names with a space before each.
local function is_listed(names, worker)
  return string.find((names or '') .. ' ', ' ' .. worker .. ' ', 1, true) ~= nil
end

-- Returns whether a worker may be able to read a job that has not tried. `names` are those that have.
local function has_reader(id, names)
  local job = redis.call('HMGET', key('job', id), 'agent', 'wire')
  local tried, able, wire = 0, {}, tonumber(job[2])
  for name in string.gmatch(names, '%S+') do
    if redis.call('ZSCORE', key('dispatch', 'workers'), name) then tried = tried + 1 end
  end
  for _, kind in ipairs(living_kinds()) do
    if kind.oldest <= wire and wire <= kind.newest then able[#able + 1] = kind end
  end
  return count_able(able, job[1]) > tried
end

-- Returns whether fit hosts could not open a job's sandbox: their workers are listed in it, too.
local function is_refused(id) return redis.call('HEXISTS', key('job', id), 'refusals') == 1 end

-- Lets a queued job, which holds no slots, rest outside of its lane: the workers that are listed in it
-- could not run it.
local function rest(id)
  local names = redis.call('HGET', key('job', id), 'unread_by') or ''
  redis.call('HSET', key('job', id), 'dispatched', RESTS,
    'waiting_for', is_refused(id)
      and 'another host: those that have tried could not open its sandbox'
      or 'a newer worker: the living ones cannot read it')
  redis.call('ZADD', key('leases'), now_ms() + (has_reader(id, names) and REST_MS or LONG_REST_MS), id)
end

-- Leaves a queued job, which holds no slots, to other workers than one that cannot read it: as it
-- is, and outside of its lane, so that it is not offered to the same workers without end. Of the
-- workers that could not read it, those that live are listed, the newest `MOST_LISTED` of them.
local function leave_to_others(id, worker)
  local listed, names, count = redis.call('HGET', key('job', id), 'unread_by') or '', ' ' .. worker, 1
  for name in string.gmatch(listed, '%S+') do
    if count == MOST_LISTED then break end
    if name ~= worker and redis.call('ZSCORE', key('dispatch', 'workers'), name) then
      names, count = names .. ' ' .. name, count + 1
    end
  end
  redis.call('HSET', key('job', id), 'unread_by', names)
  rest(id)
end

-- Ends the rest of a job if one of the workers may be able to read it; else prolongs it. One that
-- hosts refused is offered to them again, as often as they may refuse it.
local function end_rest(id, root)
  local names = redis.call('HGET', key('job', id), 'unread_by') or ''
  local can_be_read, was_refused = has_reader(id, names), is_refused(id)
  if was_refused and not can_be_read then redis.call('HSET', key('job', id), 'unread_by', '') end
  if was_refused or can_be_read then
    redis.call('ZREM', key('leases'), id)
    redis.call('HSET', key('job', id), 'dispatched', IN_LANE)
    enter_lane(id, root)
  else
    redis.call('ZADD', key('leases'), now_ms() + LONG_REST_MS, id)
  end
end

-- Returns the fields of a job that an attempt holds, with the milliseconds that all its attempts
-- have run by now; nil when the attempt no longer holds it.
local function held_job(id, token)
  local job = redis.call('HMGET', key('job', id), 'token', 'state', 'root', 'host', 'attempt',
    'claimed_at', 'ran_ms', 'cancel', 'max_attempts')
  if job[1] ~= token or job[2] ~= 'running' then return nil end
  return {root = job[3], host = job[4], attempt = job[5], ran = job[7] + now_ms() - job[6],
    is_cancelled = job[8] == '1', max_attempts = job[9]}
end
