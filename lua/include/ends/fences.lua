--[[ fences: decides which worker may end a claim, and logs refusals.

It compares the fence and the worker. The fence alone is not enough, since it may be given twice: if a snapshot is
loaded a second time and the clock is behind, an epoch may begin that workers have seen before the load.

Keys: state jobs
Args: each each_count column worker
Uses: emit(emit) batch(read_many)
]]

--- Return the text that a job's line contains if this worker holds the job under this fence.
local function mark_of(fence)
  return ' fence=' .. fence .. ' by=' .. worker .. ' '
end

--- Return why this worker may not settle a job with this line: `gone`, or `stale` if its claim is not in force; nil if
--- it may. Only a claimed job's line has a fence. A job without a line waits, so the worker's claim is not in force, or
--- was one of an earlier job with the same id. A line that is longer than scripts write counts as stale, so that the
--- doctor finds it unchanged.
local function refusal_of(id, line, fence)
  if not line then
    return redis.call('HEXISTS', jobs, id) == 1 and 'stale' or 'gone'
  elseif #line > LINE_MAX or not line:find(mark_of(fence), 1, true) then
    return 'stale'
  end
  return nil
end

--- Read the state lines of this call's records (id, fence, …). Returns one line per record, or false if it is refused;
--- the reason for each refused record; the ids and fences; and a table whose keys are the ids of the records that are
--- not refused. If a record names a job a second time, the job is gone.
local function read_held()
  local ids, fences, held, refusals, seen = column(1), column(2), {}, {}, {}
  local lines = read_many(state, ids)
  local last, mark   -- nearly all jobs of a call were claimed together
  for i = 1, each_count do
    local id, line, fence = ids[i], lines[i], fences[i]
    if fence ~= last then
      last, mark = fence, mark_of(fence)
    end
    if line and not seen[id] and #line <= LINE_MAX and line:find(mark, 1, true) then
      held[i], seen[id] = line, true
    else
      held[i], refusals[i] = false, seen[id] and 'gone' or refusal_of(id, line, fence)
    end
  end
  return held, refusals, ids, fences, seen
end

--- Append one event for all refused records: `refusals` are the reasons, by record; nil without any. `outcome`
--- is what the worker reported.
local function emit_refused(refusals, outcome, at, by)
  if not refusals or not next(refusals) then
    return
  end
  local records = {}
  for i = 1, each_count do
    if refusals[i] then
      local id, fence = each(i)
      records[#records + 1] = '["' .. id .. '","' .. fence .. '","' .. outcome .. '","' .. refusals[i] .. '"]'
    end
  end
  emit('settlement_refused', at, by, records)
end
