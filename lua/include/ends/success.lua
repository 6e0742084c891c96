--[[ success: ends the claims of jobs that succeeded. The jobs leave Redis; their history is in the outbox.

Most calls report one job, from a worker with one place. Such a job is decided and written without the tables that
several jobs need.

Keys: state leases
Args: each each_count worker tails
Uses: call(now_text) emit(emit) fences(refusal_of read_held emit_refused) state(lane_in) settled_ids(note_settled)
    lane_opening(note_release) batch(call_many) removal(remove_jobs) success_results(end_successes)
]]

local done       -- ids of the jobs that succeeded
local events     -- the event's part about each job
local refusals   -- by record: why it is refused; nil if no record is

local function reset()
  done, events, refusals = nil, nil, nil
end

--- Decide the call's only record.
local function decide_one()
  local id, fence = each(1)
  local line = redis.call('HGET', state, id)
  local why = refusal_of(id, line, fence)
  if why then
    done, refusals = {}, {why}
    return 0, {id, why}
  end
  done, events = {id}, {'["' .. id .. '","' .. fence .. '"]'}
  if may_end_more() then
    end_successes(done, {line}, events, tails())
  end
  note_release(lane_in(line), id)
  note_settled({[id] = true})
  return 1, {}
end

--- Decide this call's records, and note the places that become free. Returns the number of claims that end, and the
--- answer: the refused ids, with the reasons. The script checks the type of `jobs`, since a claim reads the key anyway.
local function decide_success()
  if each_count == 1 then
    return decide_one()
  end
  local held, ids, fences, seen
  held, refusals, ids, fences, seen = read_held()
  done, events = {}, {}
  local answer, size = {}, 0
  local last, ending
  for i = 1, each_count do
    local id, line, fence = ids[i], held[i], fences[i]
    if line then
      if fence ~= last then
        last, ending = fence, '","' .. fence .. '"]'
      end
      size = size + 1
      done[size], events[size] = id, '["' .. id .. ending
      if line:find(' lane=', 1, true) then
        note_release(lane_in(line), id)
      end
    else
      answer[#answer + 1], answer[#answer + 2] = id, refusals[i]
    end
  end
  if may_end_more() then
    end_successes(done, held, events, tails())
  end
  note_settled(seen)
  return size, answer
end

--- Append the events of successes and of refusals.
local function emit_success()
  emit('succeeded', now_text, worker, events)
  emit_refused(refusals, 'complete', now_text, worker)
end

local function write_success()
  remove_jobs(done)
  if #done == 1 then
    redis.call('ZREM', leases, done[1])
    return
  end
  call_many('ZREM', leases, done)
end
