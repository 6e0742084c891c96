--[[ claim: a worker takes jobs.

The plot:
1. Sweep (claim/sweep): what is due in the queue, whichever worker claims. Expired leases end, due jobs become ready,
   rates that were spent resume, what has expired is forgotten.
2. How many jobs may be taken at all: the queue may be paused, or at its own cap.
3. Select (claim/select): for each priority, the oldest first, merge three sources of plain jobs (claim/unscoped: those
   that return from the sweep, the list, those that join) with the open lanes (claim/pages: those of Redis, page by page;
   include/caps/lane_standing: those that the call has met). A job in a lane is taken if all its scopes have room; else
   the lane is blocked, and what stood behind it may come (include/caps/lane_opening). claim/fast_path takes ordinary jobs.
4. Write: the sweep's events, the claimed event, whose number is the fence, then lines, leases, lists and lanes.

Everything is read and decided before anything is written: jobs that the sweep makes ready can be claimed in the same call
without touching a list, and a scope that refuses leaves no trace of those that had been acquired before it.

Transitions: scheduled -promoted-> ready, ready -claimed-> running, running -lease_expired-> ready,
    running -lease_expired-> dead, cancelling -cancelled-> none, dead -pruned-> none
Flags: allow-oom
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled leases dead expiring outbox
    slots wake
Args: slot number:int worker limit:int bytes_max:int sweep_max:int
Unread: jobs dead
Uses: call(open_call now) meta(fact) state(read_line is_claimed) batch(call_many read_many) digits(digits)
    gate(gate_is_shut) queue_cap(queue_cap) wake(wake_needed wake_not_needed) scopes(rate_scopes) lane_fair(is_fair)
    lane_write(has_met_lanes open_growth check_lanes write_lanes)
    sweep(sweep ended_leases check_sweep emit_sweep write_sweep)
    unscoped(open_lists write_unscoped) select(select_jobs) fast_path(leave_fast)
    taken(taken open_reply emit_claimed write_taken close_reply)
Returns: ok NOW NEXT_DUE MORE FENCE {ID CLAIM FAILED LOST SPEC LANE}… | epoch. NEXT_DUE is - if nothing is scheduled;
    MORE is 1 if something is left that another claim may take; FENCE is - if nothing was claimed; LANE is empty if the
    job has none
Invariants: I2, I3, I4, I6, I9, I10
]]

--- The answer to a claim that is sent again: the jobs that are still held under its fence, specs read again.
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

-- 1. Sweep.
local next_due, unfinished = sweep()

-- 2. How many.
local gated = gate_is_shut()
local room = queue_cap()
local queue_limit = room and '["queue",' .. room .. ']'
if room then
  room = math.max(0, room - redis.call('ZCARD', leases) + ended_leases())
  gated = gated or room == 0
end
if gated then
  limit = 0
elseif room then
  limit = math.min(limit, room)
end

-- 3. Select.
check_keys()
open_lists()
open_reply(queue_limit)
local left = select_jobs()
leave_fast()

-- Everything is decided.
if has_met_lanes() or left == 0 then
  left = left + redis.call('ZCARD', open) + open_growth()
end
local more = not gated and (not room or room > taken) and left > 0
for i = 1, #rate_scopes do
  local scope = rate_scopes[i]
  if scope.awaited then
    next_due = next_due == '-' and scope.resumes or math.min(next_due, scope.resumes)
  end
end
if unfinished then
  next_due = now
end
local outrun = is_fair() and redis.call('ZRANGEBYSCORE', fair, '-inf', fact('fair_clock'), 'LIMIT', '0', digits(sweep_max))
-- What became claimable above called for a worker, but this call may have taken it: a worker is needed for what is left.
wake_not_needed()
if more or not gated and next_due ~= '-' and next_due <= now then
  wake_needed()
end
check_lanes()
check_sweep()

-- 4. Write.
emit_sweep()
local fence = emit_claimed()
write_sweep()
write_taken(fence)
write_unscoped()
call_many('ZREM', fair, outrun or nil)
write_lanes()
return close_reply(next_due, more, fence)
