--[[ success: holders of claims report success. The jobs leave Redis; their history is in the outbox.

Keys: jobs state leases
Args: each_count worker
Unread: jobs
Uses: call(now_text) emit(emit) fences(read_held emit_refused) state(lane_in) settled(note_settled)
    lane_opening(note_release) batch(call_many)
]]

local done       -- ids of the jobs that succeeded
local events     -- what the event says of each
local refusals   -- by record: why it is refused, if it is

local function reset()
  done, events, refusals = nil, nil, nil
end

--- Decide about this call's records, and note the places that become free. Returns how many claims end, and the answer: the
--- ids that are refused, and why.
local function decide_success()
  local held, ids, fences, seen
  held, refusals, ids, fences, seen = read_held()
  check_keys()
  done, events = {}, {}
  local answer = {}
  for i = 1, each_count do
    local id = ids[i]
    if held[i] then
      done[#done + 1] = id
      events[#events + 1] = '["' .. id .. '","' .. fences[i] .. '"]'
      note_release(lane_in(held[i]), id)
    else
      answer[#answer + 1], answer[#answer + 2] = id, refusals[i]
    end
  end
  note_settled(seen)
  return #done, answer
end

--- Append the events of successes and of refusals.
local function emit_success()
  emit('succeeded', now_text, worker, events)
  emit_refused(refusals, 'complete', now_text, worker)
end

local function write_success()
  call_many('HDEL', state, done)
  call_many('HDEL', jobs, done)
  call_many('ZREM', leases, done)
end
