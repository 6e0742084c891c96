--[[ claim: a worker takes jobs. First it does what is due for everybody (step 0): expired leases end, due jobs
become ready, rates that were spent resume, what has expired is forgotten. Then it takes ready jobs in order of priority
and age, as many as were asked for and their scopes have room for.

Everything is read and decided before anything is written: jobs that step 0 makes ready can be claimed in the
same call without touching a list, and a scope that refuses leaves no trace of those that had been acquired before it.

Transitions: scheduled -promoted-> ready, ready -claimed-> running, running -lease_expired-> ready,
    running -lease_expired-> dead, cancelling -cancelled-> none, dead -pruned-> none
Flags: allow-oom
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled leases dead expiring outbox
    slots wake
Meta: sequence lease_ms last_activity no_reap_before tombstones caps_by_task
Args: slot number:int worker limit:int bytes_max:int sweep_max:int
Uses: call emit state ready lanes dead due wake batch activity gate room
Returns: ok NOW NEXT_DUE MORE FENCE {ID CLAIM FAILED LOST SPEC LANE}… | epoch. NEXT_DUE is - if nothing is scheduled;
    MORE is 1 if something is left that another claim may take; FENCE is - if nothing was claimed; LANE is empty if the
    job has none
Invariants: I2, I3, I4, I6, I9, I10
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
      for _, value in ipairs({ids[i], job.claim, job.failed or 0, job.lost or 0, specs[i] or '', job.lane or ''}) do
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
local stale = {}                                -- rates whose time is over
local returning = {[0] = {}, {}, {}, {}}        -- jobs that go to the head of their list, by priority
local joining = {[0] = {}, {}, {}, {}}          -- jobs that join at the tail
local back = {}                                 -- jobs that step 0 made ready
local taken = {}                                -- ids decided on in this call

--- A job can be claimed again, in its lane or in a plain list. Its line is written unless it is claimed at once.
local function make_ready(job, plain)
  back[#back + 1] = job
  job.moved = true
  if job.lane then
    put(lane_of(job.lane), count(job, 'seq'), job.id, job)
  else
    local list = plain[rank(job)]
    list[#list + 1] = job
  end
end

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
      release(job.lane, id)
    elseif job and job.state == 'running' then
      local lost = count(job, 'lost') + 1
      local target = lost < count(job, 'losses') and 'ready' or 'dead'
      events.expired[#events.expired + 1] = '["' .. id .. '",' .. quoted(job.fence) .. ',' .. quoted(job.by) ..
        ',' .. lost .. ',"' .. target .. '"]'
      drop_claim(job)
      release(job.lane, id)
      job.id, job.state, job.lost, job.since, taken[id] = id, target, lost, now, true
      if target == 'ready' then
        make_ready(job, returning)
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

-- Step 0: jobs that are due, rates that resume, families whose limit has changed.
local seq = fact('sequence')
local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, sweep_max)
local resumed, swept = {}, {}
do
  local ids = {}
  for i, member in ipairs(due) do
    local kind, name = member:match('^(%l+)|(.*)$')
    ids[i] = kind == 'job' and name or ''
    if kind == 'rate' then
      resumed[#resumed + 1] = name
    elseif kind == 'caps' then
      swept[#swept + 1] = name
    end
  end
  local waiting = read_many(state, ids)
  for i, id in ipairs(ids) do
    local job = read_line(waiting[i])
    undue[#undue + 1] = due[i]
    if job and job.state == 'scheduled' then
      job.id, job.state, job.due, job.since, taken[id] = id, 'ready', nil, now, true
      local plain = returning
      if not job.seq then
        seq = seq + 1
        job.seq, plain = seq, joining
      end
      make_ready(job, plain)
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
  elseif kind == 'rate' then
    unexpired[#unexpired + 1] = member
    stale[#stale + 1] = name
  end
end

-- Everything is put back: slots become free, rates have room again, and what they kept waiting may come.
free_slots()
for _, name in ipairs(resumed) do
  await_no_more(scope_of(name))
  reevaluate(name)
end
local unfinished = {}
for _, sweep in ipairs(swept) do
  local family, after = sweep:match('^([^|]*)|?(.*)$')
  local last = reevaluate_family(family, after, math.min(sweep_max, SCOPES_MAX))
  if last then
    unfinished[#unfinished + 1], unfinished[#unfinished + 2] = now, 'caps|' .. family .. '|' .. last
  end
end

local gated = gate_is_shut()
local room = queue_cap()
local queue_limit = room and '["queue",' .. room .. ']'
if room then
  room = math.max(0, room - redis.call('ZCARD', leases) + #unleased)
  gated = gated or room == 0
end
if gated then
  limit = 0
elseif room then
  limit = math.min(limit, room)
end

-- Take jobs: by priority; in each the oldest first, from the plain list and from the open lanes.
local chosen, bytes, scanned, skipped, moves = {}, 0, {[0] = 0, 0, 0, 0}, 0, 0
redis.call('HLEN', jobs)
redis.call('ZCARD', dead)
local length = lengths()
local sleeping = wake_is_empty()
local left = 0                                  -- jobs that stay, and lanes that stay open
local heads, tails = {[0] = {}, {}, {}, {}}, {[0] = {}, {}, {}, {}}

local function full()
  return #chosen >= limit or bytes >= bytes_max
end

local function choose(job, spec, limits)
  chosen[#chosen + 1] = job
  job.spec = spec or redis.call('HGET', jobs, job.id) or ''
  job.limits = limits
  job.chosen = true
  bytes = bytes + #job.spec
end

--- The lane that a job has to be moved into, because its task got a cap after it was enqueued; nil if none.
local capped_tasks = {}
local function other_lane(job)
  if not facts.caps_by_task then
    return nil
  end
  local task = 'task=' .. (job.task or job.head:match('^task=(%S+)'))
  if capped_tasks[task] == nil then
    capped_tasks[task] = redis.call('HEXISTS', caps, task) == 1
  end
  local lane = job.lane or tostring(rank(job))
  if not capped_tasks[task] or (lane .. '+'):find('+' .. task .. '+', 1, true) then
    return nil
  end
  return lane:sub(1, 1) .. '+' .. task .. lane:sub(2)
end

--- Put a ready job into another lane. It keeps its place in line, and there is no event: nothing happened to it.
local function move_job(job, name)
  if job.head then
    job.head = job.head:gsub(' lane=%S+', '') .. ' lane=' .. name
  end
  job.lane = name
  put(lane_of(name), count(job, 'seq'), job.id, job)
  if not job.moved then
    job.moved = true
    back[#back + 1] = job
  end
  moves = moves + 1
end

-- The plain jobs of a priority, in order: those that return, the list, those that join. Entries of the list that lead
-- nowhere (the job was cancelled, or came back by another entry) are passed over, `sweep_max` of them per call. Steps
-- begin small and double, so that large payloads, which the byte bound leaves behind, are not read.
local source

local function open_source(priority)
  local function by_age(a, b)
    return count(a, 'seq') < count(b, 'seq')
  end
  table.sort(returning[priority], by_age)
  table.sort(joining[priority], by_age)
  source = {priority = priority, first = 1, last = 1, step = 4, ids = {}, at = 1}
end

--- The next job of the list, and its spec; nil if there is none.
local function peek_list()
  local priority = source.priority
  while source.job == nil and scanned[priority] < length[priority] and skipped <= sweep_max do
    if source.at > #source.ids then
      source.ids = redis.call('LRANGE', ready[priority], scanned[priority],
        scanned[priority] + math.min(limit - #chosen, source.step) - 1)
      source.step = math.min(source.step * 2, 1000)
      source.held, source.specs, source.at = read_many(state, source.ids), read_many(jobs, source.ids), 1
    end
    local id = source.ids[source.at]
    local line = not taken[id] and source.held[source.at]
    local job = line and read_ready(line)
    if job and job.state == 'ready' and not job.lane and rank(job) == priority then
      job.id = id
      source.job, source.spec = job, source.specs[source.at]
    else
      skipped = skipped + 1
      scanned[priority] = scanned[priority] + 1
      source.at = source.at + 1
    end
  end
  return source.job
end

--- The plain job that comes next.
local function peek_plain()
  return returning[source.priority][source.first] or peek_list() or
    scanned[source.priority] == length[source.priority] and joining[source.priority][source.last] or nil
end

--- Go on behind it. Returns its spec, if it was read.
local function pass_plain()
  local priority, spec = source.priority, nil
  if returning[priority][source.first] then
    source.first = source.first + 1
  elseif source.job then
    taken[source.job.id] = true
    spec = source.spec
    source.job = nil
    source.at = source.at + 1
    scanned[priority] = scanned[priority] + 1
  else
    source.last = source.last + 1
  end
  return spec
end

-- The open lanes, in order: those of Redis that this call has not met, read in pages, and those that it has.
local page, page_at, page_offset, page_step, stored = {}, 1, 0, 4, nil

--- The order of the open lane that comes first; nil if none of this priority, or a higher one, is left.
local function first_open(priority)
  stored = nil
  while true do
    if page_at > #page then
      if page_offset < 0 then
        break
      end
      page = redis.call('ZRANGE', open, page_offset, page_offset + page_step - 1, 'WITHSCORES')
      page_offset = #page == 2 * page_step and page_offset + page_step or -1
      page_step, page_at = math.min(page_step * 2, 100), 1
    elseif known_lanes[page[page_at]] then
      page_at = page_at + 2
    else
      stored = tonumber(page[page_at + 1])
      break
    end
  end
  while open_lanes[1] do
    local lane = open_lanes[1].value
    if lane.where == 'open' and lane.order == open_lanes[1].order then
      break
    end
    heap_pop(open_lanes)
  end
  local order = open_lanes[1] and open_lanes[1].order
  if stored and (not order or stored < order) then
    order = stored
  end
  return order and order < (priority + 1) * RANK and order or nil
end

--- That lane.
local function take_open(order)
  if order ~= stored then
    return open_lanes[1].value
  end
  return meet_lane(page[page_at], 'open', nil, stored)
end

--- The record of a lane's first job. Records are read in steps that double, like those of the plain lists.
local function record_of(lane, entry)
  if entry.job or entry.line ~= nil then
    return entry.job or entry.line and read_waiting(entry.line, lane.name, entry.seq)
  end
  lane.records = math.min((lane.records or 0.5) * 2, limit - #chosen)
  if lane.records == 1 then
    entry.line, entry.spec = redis.call('HGET', state, entry.id), redis.call('HGET', jobs, entry.id)
    return entry.line and read_waiting(entry.line, lane.name, entry.seq)
  end
  local ids, from = {}, lane.at
  for at = from, math.min(from + lane.records - 1, #lane.page) do
    ids[#ids + 1] = lane.page[at].id
  end
  local held, specs = read_many(state, ids), read_many(jobs, ids)
  for i = 1, #ids do
    lane.page[from + i - 1].line, lane.page[from + i - 1].spec = held[i], specs[i]
  end
  return entry.line and read_waiting(entry.line, lane.name, entry.seq)
end

--- In a fair queue a lane keeps its order when it loses its head for another reason than being served.
local function keep_open(lane)
  if lane.where == 'open' and is_fair() then
    heap_push(open_lanes, lane.order, lane)
  end
  moved_on(lane)
end

--- Take the first job of an open lane, or let the lane move on.
local function serve(lane)
  local entry = peek(lane)
  local job = entry and record_of(lane, entry)
  if is_fair() and lane.rank * RANK + finish_of(lane.key) > lane.order then
    -- Jobs of this key were served from other lanes since it was put here.
    moves = moves + 1
    reorder(lane, lane.rank * RANK + finish_of(lane.key))
    moved_on(lane)
    return
  elseif not entry or not job or job.state ~= 'ready' or job.lane ~= lane.name then
    -- It leads nowhere.
    moves = moves + 1
    if entry then
      remove(lane, entry)
    else
      lane.where = nil
    end
    keep_open(lane)
    return
  end
  job.id = entry.id
  lane.of_task = lane.of_task or lane.name:sub(2, 7) == '+task='
  local elsewhere = not lane.of_task and other_lane(job)
  if elsewhere then
    remove(lane, entry)
    move_job(job, elsewhere)
    keep_open(lane)
    return
  end
  local wanted = scopes_of(lane)
  local refused_by = acquire_all(wanted, now)
  if refused_by then
    moves = moves + 1
    block(lane, refused_by)
    moved_on(lane, refused_by)
    return
  end
  hold(wanted, job.id)
  lane.limits = lane.limits or limits_in_force(wanted)
  remove(lane, entry)
  serve_fairly(lane)
  choose(job, entry.spec, lane.limits)
  -- What would refuse the next job of the lane is known now, so nobody needs to visit it for that.
  local full_scope = lane.where == 'open' and first_full(wanted)
  if full_scope then
    block(lane, full_scope)
  end
  moved_on(lane, full_scope)
end

for priority = 0, 3 do
  open_source(priority)
  while not full() do
    local job = peek_plain()
    local order = moves <= sweep_max and first_open(priority)
    -- In a fair queue, plain jobs are those from before it was fair.
    if order and (not job or not is_fair() and order - priority * RANK < count(job, 'seq')) then
      serve(take_open(order))
    elseif job and (moves <= sweep_max or not other_lane(job)) then
      local spec = pass_plain()
      local elsewhere = other_lane(job)
      if elsewhere then
        move_job(job, elsewhere)
      else
        taken[job.id] = true
        choose(job, spec, '')
      end
    else
      break
    end
  end
  for i = source.first, #returning[priority] do
    local job = returning[priority][i]
    heads[priority][#heads[priority] + 1] = {job.id, count(job, 'seq')}
  end
  for i = source.last, #joining[priority] do
    tails[priority][#tails[priority] + 1] = joining[priority][i].id
  end
  left = left + length[priority] - scanned[priority] + #heads[priority] + #tails[priority]
end

-- Everything is decided. The fence is the number that the claimed event gets.
for _, job in ipairs(chosen) do
  job.claim = count(job, 'claim') + 1
  local limits = job.limits
  if queue_limit then
    limits = limits == '' and queue_limit or limits .. ',' .. queue_limit
  end
  events.claimed[#events.claimed + 1] = '["' .. job.id .. '",' .. job.claim ..
    (limits == '' and ']' or ',[' .. limits .. ']]')
end
left = left + redis.call('ZCARD', open) + open_growth()
local more = not gated and (not room or room > #chosen) and left > 0
for _, scope in pairs(known_scopes) do
  if scope.awaited then
    next_due = next_due == '-' and scope.resumes or math.min(next_due, scope.resumes)
  end
end
if #unfinished > 0 then
  next_due = now
end
local outrun = is_fair() and redis.call('ZRANGEBYSCORE', fair, '-inf', fact('fair_clock'), 'LIMIT', 0, sweep_max)
check_lanes()
if #stale > 0 then
  check_scopes()
end

emit('lease_expired', now, worker, events.expired)
emit('cancelled', now, worker, events.cancelled)
emit('promoted', now, worker, events.promoted)
emit('pruned', now, worker, events.pruned)
local fence = emit('claimed', now, worker, events.claimed) or '-'

local answer = {now, next_due, more and 1 or 0, fence}
local reply = {'ok', unpack(answer)}
local granted = {}
local deadline = now + fact('lease_ms')
local ending = ' since=' .. now .. ' by=' .. worker
for _, job in ipairs(chosen) do
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = job.id, job.claim, job.failed or 0
  reply[at + 4], reply[at + 5], reply[at + 6] = job.lost or 0, job.spec, job.lane or ''
  answer[#answer + 1] = job.id
  job.state, job.fence, job.by, job.since = 'running', fence, worker, now
  lines[#lines + 1], lines[#lines + 2] = job.id, write_running(job, fence, ending)
  granted[#granted + 1], granted[#granted + 2] = deadline, job.id
end
for _, job in ipairs(back) do
  if not job.chosen then
    lines[#lines + 1], lines[#lines + 2] = job.id, write_ready(job)
  end
end
for priority = 0, 3 do
  if scanned[priority] > 0 then
    redis.call('LTRIM', ready[priority], scanned[priority], -1)
  end
  return_ready(priority, heads[priority])
  call_many('RPUSH', ready[priority], tails[priority])
end
call_many('HDEL', state, gone)
call_many('HDEL', jobs, gone)
call_many('HSET', state, lines)
call_many('ZREM', leases, unleased)
call_many('ZADD', leases, granted)
call_many('ZREM', scheduled, undue)
call_many('ZADD', scheduled, unfinished)
bury(died, now)
exhume(gone)
call_many('ZREM', expiring, unexpired)
call_many('HDEL', slots, forgotten)
call_many('HDEL', rates, stale)
call_many('ZREM', fair, outrun or {})
write_lanes()
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
