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
Args: slot number:int worker limit:int bytes_max:int sweep_max:int
Uses: call emit state choose chosen sweep plain lanes wake batch gate room
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

-- Step 0, for everybody.
expire_leases()
local next_due = promote_due()
forget_old()
local unfinished = let_resume()

-- How many may be taken.
local gated = gate_is_shut()
local room = queue_cap()
local queue_limit = room and '["queue",' .. room .. ']'
if room then
  room = math.max(0, room - redis.call('ZCARD', leases) + #(swept.unleased or {}))
  gated = gated or room == 0
end
if gated then
  limit = 0
elseif room then
  limit = math.min(limit, room)
end

-- Only so that a key of another type is an error here, before the first write, and not after it.
redis.call('HLEN', jobs)
redis.call('ZCARD', dead)
list_lengths = lengths()
local sleeping = wake_is_empty()
open_reply(queue_limit)
local left = choose_jobs()

-- Everything is decided.
if #lane_list > 0 or #visited > 0 or left == 0 then
  left = left + redis.call('ZCARD', open) + open_growth()
end
local more = not gated and (not room or room > chosen) and left > 0
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
check_lanes()
if swept.stale then
  check_scopes()
end

emit_sweep()
-- The fence is the number that the claimed event gets.
local fence = emit('claimed', now_text, worker, claimed) or '-'
write_sweep()
write_chosen(fence)
write_plain()
call_many('ZREM', fair, outrun or nil)
write_lanes()
if sleeping and (more or not gated and next_due ~= '-' and next_due <= now) then
  push_token()
end
return close_reply(next_due, more, fence)
