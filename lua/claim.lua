--[[ claim: a worker takes jobs. First it does what is due for everybody (step 0): expired leases end, due jobs
become ready, what has expired is forgotten. Then it takes ready jobs in order, as many as were asked for.

Everything is read and decided before anything is written: jobs that step 0 makes ready can be claimed in the
same call without touching a list.

Transitions: scheduled -promoted-> ready, ready -claimed-> running, running -lease_expired-> ready,
    running -lease_expired-> dead, cancelling -cancelled-> none, dead -pruned-> none
Flags: allow-oom
Keys: meta state jobs ready scheduled leases dead expiring outbox slots wake
Meta: sequence lease_ms last_activity no_reap_before tombstones
Args: slot number:int worker limit:int bytes_max:int sweep_max:int
Uses: call emit state ready dead due wake batch activity gate
Returns: ok NOW NEXT_DUE MORE FENCE {ID CLAIM FAILED LOST SPEC}… | epoch. NEXT_DUE is - if nothing is scheduled;
    MORE is 1 if something is left that another claim may take; FENCE is - if nothing was claimed
Invariants: I2, I4, I6, I9
]]

--- The answer to a claim that is sent again: the jobs that are still held under its fence, specs read anew.
local function replay(words)
  local reply = {'ok', words[1], words[2], words[3], words[4]}
  local ids = {}
  for i = 5, #words do
    ids[#ids + 1] = words[i]
  end
  local lines, specs = read_many(state, ids), read_many(jobs, ids)
  for i = 1, #ids do
    local job = read_line(lines[i])
    if job and job.fence == words[4] and is_claimed(job) then
      for _, value in ipairs({ids[i], job.claim, job.failed or 0, job.lost or 0, specs[i] or ''}) do
        reply[#reply + 1] = value
      end
    end
  end
  return reply
end

local refusal = open_call(replay)
if refusal then
  return refusal
end

local events = {expired = {}, cancelled = {}, promoted = {}, pruned = {}, claimed = {}}
local lines = {}                                -- state lines to write: id, line, …
local gone, died, forgotten = {}, {}, {}        -- ids
local unleased, undue, unexpired = {}, {}, {}   -- members to remove from leases, scheduled, expiring
local returning = {[0] = {}, {}, {}, {}}        -- jobs that go to the head of their list, by priority
local joining = {[0] = {}, {}, {}, {}}          -- jobs that join at the tail
local taken = {}                                -- ids decided on in this call

-- Step 0: leases that are over, unless the whole fleet stood still.
note_activity(now)
if fact('no_reap_before') <= now then
  local ids = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, sweep_max)
  local held = read_many(state, ids)
  for i, id in ipairs(ids) do
    local job = read_line(held[i])
    unleased[#unleased + 1] = id
    if job and job.state == 'cancelling' then
      events.cancelled[#events.cancelled + 1] = '["' .. id .. '",' .. quoted(job.fence) .. ']'
      gone[#gone + 1] = id
    elseif job and job.state == 'running' then
      local lost = count(job, 'lost') + 1
      local target = lost < count(job, 'losses') and 'ready' or 'dead'
      events.expired[#events.expired + 1] = '["' .. id .. '",' .. quoted(job.fence) .. ',' .. quoted(job.by) ..
        ',' .. lost .. ',"' .. target .. '"]'
      drop_claim(job)
      job.id, job.state, job.lost, job.since, taken[id] = id, target, lost, now, true
      if target == 'ready' then
        local list = returning[rank(job)]
        list[#list + 1] = job
      else
        job.reason = 'poison'
        died[#died + 1] = id
        lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
      end
    end
  end
else
  redis.call('ZCARD', leases)
end

-- Step 0: jobs that are due.
local seq = fact('sequence')
local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, sweep_max)
do
  local ids = {}
  for i, member in ipairs(due) do
    ids[i] = member:match('^job|(.*)$') or ''
  end
  local waiting = read_many(state, ids)
  for i, id in ipairs(ids) do
    local job = read_line(waiting[i])
    undue[#undue + 1] = due[i]
    if job and job.state == 'scheduled' then
      job.id, job.state, job.due, job.since, taken[id] = id, 'ready', nil, now, true
      local list = returning[rank(job)]
      if not job.seq then
        seq = seq + 1
        job.seq = seq
        list = joining[rank(job)]
      end
      list[#list + 1] = job
      events.promoted[#events.promoted + 1] = '["' .. id .. '",' .. job.seq .. ']'
    end
  end
end
local next_due = earliest_due(#due) or '-'

-- Step 0: what nobody needs to remember any longer.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', 0, sweep_max)) do
  local kind, name = member:match('^(%l+)|(.*)$')
  if kind == 'slot' and name ~= slot then
    unexpired[#unexpired + 1] = member
    forgotten[#forgotten + 1] = name
  elseif kind == 'dead' then
    unexpired[#unexpired + 1] = member
    local job = read_line(redis.call('HGET', state, name))
    if job and job.state == 'dead' then
      events.pruned[#events.pruned + 1] = '["' .. name .. '"]'
      gone[#gone + 1] = name
    end
  end
end

local gated = gate_is_shut()
if gated then
  limit = 0
end

-- Take jobs: by priority, in each those that return, then the list, then those that join.
local chosen, bytes, scanned, skipped = {}, 0, {[0] = 0, 0, 0, 0}, 0
redis.call('HLEN', jobs)
redis.call('ZCARD', dead)
local length = lengths()
local left = 0
local sleeping = wake_is_empty()

local function full()
  return #chosen >= limit or bytes >= bytes_max
end

local function choose(job, spec)
  chosen[#chosen + 1] = job
  job.spec = spec or ''
  bytes = bytes + #job.spec
end

--- Choose from jobs that step 0 made ready; what is not chosen stays in `list`.
local function take_from(list)
  table.sort(list, function(a, b) return count(a, 'seq') < count(b, 'seq') end)
  local first = 1
  while list[first] and not full() do
    choose(list[first], redis.call('HGET', jobs, list[first].id))
    first = first + 1
  end
  for i = 1, #list do
    list[i] = list[first + i - 1]
  end
end

--- Choose from the plain list. Entries that lead nowhere (the job was cancelled, or came back by another entry)
--- are passed over, `sweep_max` of them per call. The steps begin small and double, so that large payloads, which
--- the byte bound leaves behind, are not read.
local function take_from_list(priority)
  local step = 4
  while scanned[priority] < length[priority] and not full() and skipped <= sweep_max do
    local ids = redis.call('LRANGE', ready[priority], scanned[priority],
      scanned[priority] + math.min(limit - #chosen, step) - 1)
    step = math.min(step * 2, 1000)
    local held, specs = read_many(state, ids), read_many(jobs, ids)
    for i, id in ipairs(ids) do
      if full() then
        return
      end
      scanned[priority] = scanned[priority] + 1
      local job = not taken[id] and read_line(held[i])
      if job and job.state == 'ready' and rank(job) == priority then
        job.id, taken[id] = id, true
        choose(job, specs[i])
      else
        skipped = skipped + 1
      end
    end
  end
end

for priority = 0, 3 do
  take_from(returning[priority])
  take_from_list(priority)
  if scanned[priority] == length[priority] then
    take_from(joining[priority])
  end
  left = left + length[priority] - scanned[priority] + #returning[priority] + #joining[priority]
end

-- Everything is decided. The fence is the number that the claimed event gets.
for _, job in ipairs(chosen) do
  job.claim = count(job, 'claim') + 1
  events.claimed[#events.claimed + 1] = '["' .. job.id .. '",' .. job.claim .. ']'
end
emit('lease_expired', now, worker, events.expired)
emit('cancelled', now, worker, events.cancelled)
emit('promoted', now, worker, events.promoted)
emit('pruned', now, worker, events.pruned)
local fence = emit('claimed', now, worker, events.claimed) or '-'

local more = left > 0 and not gated
local answer = {now, next_due, more and 1 or 0, fence}
local reply = {'ok', unpack(answer)}
local granted = {}
local deadline = now + fact('lease_ms')
for _, job in ipairs(chosen) do
  for _, value in ipairs({job.id, job.claim, job.failed or 0, job.lost or 0, job.spec}) do
    reply[#reply + 1] = value
  end
  answer[#answer + 1] = job.id
  job.state, job.fence, job.by, job.since = 'running', fence, worker, now
  lines[#lines + 1], lines[#lines + 2] = job.id, write_line(job)
  granted[#granted + 1], granted[#granted + 2] = deadline, job.id
end
for priority = 0, 3 do
  local back, tail = {}, {}
  for _, job in ipairs(returning[priority]) do
    back[#back + 1] = {job.id, count(job, 'seq')}
    lines[#lines + 1], lines[#lines + 2] = job.id, write_line(job)
  end
  for _, job in ipairs(joining[priority]) do
    tail[#tail + 1] = job.id
    lines[#lines + 1], lines[#lines + 2] = job.id, write_line(job)
  end
  if scanned[priority] > 0 then
    redis.call('LTRIM', ready[priority], scanned[priority], -1)
  end
  return_ready(priority, back)
  call_many('RPUSH', ready[priority], tail)
end
call_many('HDEL', state, gone)
call_many('HDEL', jobs, gone)
call_many('HSET', state, lines)
call_many('ZREM', leases, unleased)
call_many('ZADD', leases, granted)
call_many('ZREM', scheduled, undue)
bury(died, now)
exhume(gone)
call_many('ZREM', expiring, unexpired)
call_many('HDEL', slots, forgotten)
if seq ~= fact('sequence') then
  set_fact('sequence', seq)
end
if skipped > 0 then
  set_fact('tombstones', math.max(0, fact('tombstones') - skipped))
end
if sleeping and (more or not gated and next_due ~= '-' and next_due <= now) then
  push_token()
end
close_call(answer)
return reply
