--[[ repair: make a queue's indexes and its log agree with `state` again, record by record. `doctor` finds what does
not agree and says what to do; what a script broken in mid-write or a careless hand left behind is mended here.
Sending it twice is harmless.

A record's kind is `job` (its name is the id), `slot` (a call slot that would not be forgotten in time), or `scheduled`
or `expiring` (a member of that index that leads nowhere). For a job, `line` is written as its state if that still
reads as it `was` (nothing: there is none); `relog` 1 appends a baseline event of the job; `relist` 1 puts it, if it is
ready, at the head of its list: an entry too many is harmless, since claim passes over it.

Flags: allow-oom
Keys: meta state jobs ready scheduled leases dead expiring slots outbox wake
Meta: epoch replid sequence lease_ms tombstones dead_retention_ms
Args: by sequence_min:int tombstones_now:int
Each: kind name relog:int relist:int was line
Uses: clock meta epoch emit state ready dead wake batch baseline
Returns: ok REPAIRED | epoch. TOMBSTONES_NOW below 0 leaves their number as it is
Invariants: I8
]]

read_facts()
if not same_history(facts) then
  return {'epoch'}
end
local now = clock_ms()
local names = {}
for i = 1, each_count do
  local _, name = each(i)
  names[i] = name
end
local lines, held = read_many(state, names), read_many(slots, names)
redis.call('HLEN', jobs)
redis.call('ZCARD', dead)
redis.call('ZCARD', expiring)
redis.call('ZCARD', scheduled)
redis.call('ZCARD', leases)
lengths()
local sleeping = wake_is_empty()

local events, written = {}, {}
for i, name in ipairs(names) do
  local kind, _, relog, _, was, line = each(i)
  if kind == 'job' then
    if line ~= '' and (lines[i] or '') == was then
      lines[i] = line
      written[#written + 1], written[#written + 2] = name, line
    end
    if relog == 1 then
      events[#events + 1] = baseline_of(name, read_line(lines[i]))
    end
  end
end

--- Put a job where its line says that it is, and nowhere else.
local function settle_job(id, job, relist)
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
    local died = tonumber(job.since) or now
    redis.call('ZADD', dead, died, id)
    redis.call('ZADD', expiring, 'NX', died + fact('dead_retention_ms'), 'dead|' .. id)
  else
    exhume({id})
  end
  if job and job.state == 'ready' and relist == 1 then
    return_ready(rank(job), {{id, count(job, 'seq')}})
  end
end

emit('baseline', now, by, events)
call_many('HSET', state, written)
for i, name in ipairs(names) do
  local kind, _, _, relist = each(i)
  if kind == 'job' then
    settle_job(name, read_line(lines[i]), relist)
  elseif kind == 'slot' and held[i] then
    local deadline = tonumber(held[i]:match('^%d+ (%d+)')) or now + SLOT_LIFE_MS
    redis.call('ZADD', expiring, deadline, 'slot|' .. name)
  elseif kind == 'scheduled' then
    redis.call('ZREM', scheduled, name)
  elseif kind == 'expiring' then
    redis.call('ZREM', expiring, name)
  end
end
if fact('sequence') < sequence_min then
  set_fact('sequence', sequence_min)
end
if tombstones_now >= 0 then
  set_fact('tombstones', tombstones_now)
end
redis.call('LTRIM', wake, 0, 0)
if sleeping then
  push_token()
end
write_facts()
return {'ok', #names}
