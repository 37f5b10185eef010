-- Adds what a worker has counted to the totals of the installation.
-- ARGV: prefix, worker, name of this addition, maximum number of models with totals of their own,
-- tokens and dollars that were spent, then of each total: its field, what is added, the model that it
-- is about ('': none), and the field for models that are too many.
-- Returns 0 when it was added before: the call is repeated when its answer was lost.
even_if_full()
local request, most = ARGV[3], tonumber(ARGV[4])
local added = key('counted', ARGV[2])
if redis.call('GET', added) == request then return 0 end

-- Returns whether a model has totals of its own.
local function is_shown(model)
  local models = key('counted_models')
  if redis.call('SISMEMBER', models, model) == 1 then return true end
  return redis.call('SCARD', models) < most and redis.call('SADD', models, model) == 1
end

for at = 7, #ARGV, 4 do
  local is_own = ARGV[at + 2] == '' or is_shown(ARGV[at + 2])
  local field = is_own and ARGV[at] or ARGV[at + 3]
  redis.call('HINCRBYFLOAT', key('worker', '!totals'), field, ARGV[at + 1])
end
if ARGV[5] ~= '0' then
  local minute = key('worker', '!spent', math.floor(now_ms() / 60000))
  redis.call('HINCRBYFLOAT', minute, 'tokens', ARGV[5])
  redis.call('HINCRBYFLOAT', minute, 'cost_usd', ARGV[6])
  redis.call('EXPIRE', minute, 180)
end
redis.call('SET', added, request, 'EX', 180)
return 1
