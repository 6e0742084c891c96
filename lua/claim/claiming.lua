--[[ claiming: what a claim is, whichever script makes it: `claim`, or `turn`, which reports successes as well.

The plot:
1. Sweep (sweep/sweep): what is due in the queue, whichever worker claims. Expired leases end, due jobs become ready, jobs that
   have waited for too long expire (sweep/expiry), rates that were spent resume, what has expired is forgotten.
2. How many jobs may be taken at all: the queue may be paused, or at its own cap.
3. Select (claim/select): for each priority, the oldest first, merge three sources of plain jobs (claim/plain_jobs: those
   that return from the sweep, the list, those that join) with the open lanes (claim/open_lanes: those of Redis, page by page;
   include/caps/lane_states: those that the call has met). A job in a lane is taken if all its scopes have room; else
   the lane is blocked, and what stood behind it may come (include/caps/lane_opening). claim/fast_path takes ordinary jobs.
4. Write: the sweep's events, the claimed event, whose number is the fence, then lines, leases, lists and lanes.

Everything is read and decided before anything is written: jobs that the sweep makes ready can be claimed in the same call
without touching a list, and a scope that refuses leaves no trace of those that had been acquired before it.

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

local next_due   -- when something is due next; '-' if nothing is scheduled
local more       -- whether something is left that another claim may take
local fence      -- of the jobs that are taken
local outrun     -- keys of a fair queue that its clock has passed

local function reset()
  next_due, more, fence, outrun = nil, nil, nil, nil
end

--- The reply to a claim that is sent again: the jobs that are still held under its fence, specs read again.
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

--- Decide what the claim takes, after `ended` claims that their holder settles in the same call. Returns how many jobs it
--- takes.
local function decide_claim(ended)
  local unfinished
  next_due, unfinished = sweep()
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
  -- What became claimable above called for a worker, but this call may have taken it: a worker is needed for what is left.
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

--- End the call, and return the reply. `refused` are ids and why their success is refused, each with a space before it.
local function close_claim(refused)
  local header = now_text .. ' ' .. (next_due ~= '-' and digits(next_due) or '-') .. (more and ' 1 ' or ' 0 ') .. fence .. refused
  local reply, answer = close_reply(header)
  keep_answer(answer)
  return reply
end
