--[[ repair: make a queue's indexes and its log agree with `state` again, job by job. `doctor` finds the jobs and
says what to do; what a script broken in mid-write or a careless hand left behind is mended here.

`relog` 1 appends a baseline event of the job. `relist` 1 puts a ready job at the head of its list: an entry too
many is harmless, since claim passes over it.

Flags: allow-oom
Keys: meta state jobs ready scheduled leases dead expiring outbox wake
Meta: epoch replid sequence lease_ms tombstones dead_retention_ms
Args: by sequence_min:int tombstones_now:int
Each: id relog:int relist:int
Uses: clock meta epoch emit state ready dead wake batch baseline
Returns: ok REPAIRED | epoch
Invariants: I8
]]

read_facts()
if not same_history(facts) then
  return {'epoch'}
end
local now = clock_ms()
local ids = {}
for i = 1, each_count do
  ids[i] = each(i)
end
local lines = read_many(state, ids)
redis.call('HLEN', jobs)
redis.call('ZCARD', dead)
redis.call('ZCARD', expiring)
redis.call('ZCARD', scheduled)
redis.call('ZCARD', leases)
lengths()
local sleeping = wake_is_empty()

local events = {}
for i, id in ipairs(ids) do
  local _, relog = each(i)
  if relog == 1 then
    events[#events + 1] = baseline_of(id, read_line(lines[i]))
  end
end
emit('baseline', now, by, events)
for i, id in ipairs(ids) do
  local job = read_line(lines[i])
  local _, _, relist = each(i)
  if not job then
    redis.call('HDEL', jobs, id)
  end
  if job and is_claimed(job) then
    redis.call('ZADD', leases, 'NX', now + fact('lease_ms'), id)
  else
    redis.call('ZREM', leases, id)
  end
  if job and job.state == 'scheduled' then
    redis.call('ZADD', scheduled, job.due or now, 'job|' .. id)
  else
    redis.call('ZREM', scheduled, 'job|' .. id)
  end
  if job and job.state == 'dead' then
    redis.call('ZADD', dead, 'NX', job.since or now, id)
    redis.call('ZADD', expiring, 'NX', (job.since or now) + fact('dead_retention_ms'), 'dead|' .. id)
  else
    exhume({id})
  end
  if job and job.state == 'ready' and relist == 1 then
    return_ready(rank(job), {{id, count(job, 'seq')}})
  end
end
if fact('sequence') < sequence_min then
  set_fact('sequence', sequence_min)
end
if tombstones_now >= 0 then
  set_fact('tombstones', tombstones_now)
end
if sleeping then
  push_token()
end
write_facts()
return {'ok', #ids}
