--[[ claiming: makes a claim, for each script that claims: `claim`, and `turn`, which also reports successes.

The steps:

1. Sweep (sweep/sweep): do the due work of the queue, whichever worker claims. Expired leases end, due jobs become
ready, jobs past their deadline expire (sweep/expiry), exhausted rates resume, and expired names, ids and slots are
forgotten.

2. Find out how many jobs may be taken at all: the queue may be paused, or at its own cap.

3. Select (claim/select): for each priority, merge three sources of plain jobs (claim/plain_jobs: jobs that return from
the sweep, the list, jobs that join its tail) with the open lanes (claim/open_lanes: the lanes in Redis, page by page;
include/caps/lane_states: the lanes that the call has met), the oldest job first. A job in a lane is taken if all its
scopes have room. Otherwise the lane is blocked, and lanes that waited for it may be opened (include/caps/lane_opening).
claim/fast_path takes ordinary jobs.

4. Write: the events of the sweep; the claimed event, whose entry id is the fence; then lines, leases, lists and lanes.

Everything is read and decided before anything is written. So jobs that the sweep makes ready can be claimed in the same
call without being written into a list, and if a scope refuses a job, the places that the job had acquired in other
scopes are never written.

Keys: state jobs leases fair
Args: limit sweep_max
Uses: call(now now_text keep_answer) parts(run_parts) meta(fact) state(read_line is_claimed)
    batch(call_many read_many) digits(digits) gate(gate_is_shut) queue_cap(queue_cap)
    wake(wake_needed wake_not_needed) scopes(first_resume) lane_fair(is_fair)
    lane_write(has_met_lanes open_growth check_lanes write_lanes)
    sweep(sweep ended_leases check_sweep emit_sweep write_sweep) plain_queue(is_plain_queue)
    plain_jobs(open_lists write_plain_jobs) open_lanes(count_stored) select(select_jobs) fast_path(leave_fast)
    claimed_jobs(taken open_reply word_of emit_claimed write_taken close_reply)
]]

local next_due   -- time at which the next scheduled member is due; '-' if nothing is scheduled
local more       -- whether jobs are left that another claim may take
local fence      -- the fence of the jobs that are taken
local has_ticks  -- whether schedules are due
local outrun     -- keys of a fair queue whose finish times its clock has passed

local function reset()
  next_due, more, fence, has_ticks, outrun = nil, nil, nil, nil, nil
end

--- Return the reply to a claim that is sent again: the jobs that are still held under its fence. Their specs are read
--- again.
local function replay(answer)
  local header, rest = answer:match('^([^|]*) |(.*)$')
  local reply = {'ok', header or answer}
  local ids = {}
  for id in (rest or ''):gmatch('%S+') do
    ids[#ids + 1] = id
  end
  local claim_fence = answer:match('^%S+ %S+ %S+ (%S+)')
  local lines, specs = read_many(state, ids), read_many(jobs, ids)
  for i = 1, #ids do
    local job = read_line(lines[i])
    if job and job.fence == claim_fence and is_claimed(job) then
      job.claim = tonumber(job.claim)
      reply[#reply + 1], reply[#reply + 2] = word_of(ids[i], job.lane or '', job), specs[i] or ''
    end
  end
  return reply
end

--- Decide which jobs the claim takes. `ended` is the number of claims that the worker settles in the same call. Returns
--- the number of jobs.
local function decide_claim(ended)
  local unfinished
  next_due, unfinished, has_ticks = sweep()
  local gated = gate_is_shut()
  local room = not is_plain_queue() and queue_cap() or nil
  local queue_limit = room and '["queue",' .. room .. ']'
  if room then
    room = math.max(0, room - redis.call('ZCARD', leases) + ended_leases() + ended)
    gated = gated or room == 0
  end
  if gated then
    limit = 0
  elseif room then
    limit = math.min(limit, room)
  end

  open_lists()
  open_reply(queue_limit)
  local left = select_jobs()
  leave_fast()

  if has_met_lanes() or left == 0 then
    left = left + count_stored() + open_growth()
  end
  more = not gated and (not room or room > taken) and left > 0
  local resumes = first_resume()
  if resumes then
    next_due = next_due == '-' and resumes or math.min(next_due, resumes)
  end
  if unfinished then
    next_due = now
  end
  outrun = is_fair() and redis.call('ZRANGEBYSCORE', fair, '-inf', fact('fair_clock'), 'LIMIT', '0', digits(sweep_max)) or nil
  -- Jobs that became claimable above called for a worker, but this call may have taken them. Whether a worker is needed
  -- is decided again for the jobs that are left.
  wake_not_needed()
  if more or not gated and next_due ~= '-' and next_due <= now then
    wake_needed()
  end
  check_lanes()
  check_sweep()
  run_parts('check')
  return taken
end

--- Append the events.
local function emit_claim()
  emit_sweep()
  fence = emit_claimed()
end

local function write_claim()
  write_sweep()
  run_parts('write')
  write_taken(fence)
  write_plain_jobs()
  if outrun then
    call_many('ZREM', fair, outrun)
  end
  write_lanes()
end

--- End the call, and return the reply. `refused` has the ids whose success is refused and the reasons, each with a
--- space before it.
local function close_claim(refused)
  local header = now_text .. ' ' .. (next_due ~= '-' and digits(next_due) or '-') .. (has_ticks and (more and ' 3 ' or ' 2 ') or more and ' 1 ' or ' 0 ') .. fence .. refused
  local reply, answer = close_reply(header)
  keep_answer(answer)
  return reply
end
