--[[ fences: who may end a claim, and the refusals that are audited.

Keys: state jobs
Args: each each_count
Uses: emit(emit) batch(read_many)
]]

--- Read the state lines of this call's records (id, fence, …). Returns one line or false per record; why each false one is
--- refused, which is `gone`, or `stale` if that claim is not in force; the ids and fences; and a table whose keys are the ids of
--- the others. Only a claimed job's line has a fence. A record that names a job a second time finds it gone.
local function read_held()
  local ids, fences, held, refusals, seen = {}, {}, {}, {}, {}
  for i = 1, each_count do
    ids[i], fences[i] = each(i)
  end
  local lines = read_many(state, ids)
  for i = 1, each_count do
    local id = ids[i]
    local line = not seen[id] and lines[i]
    if not line then
      -- A job without a line waits, and its id may be one that was used before.
      local waits = not seen[id] and redis.call('HEXISTS', jobs, id) == 1
      held[i], refusals[i] = false, waits and 'stale' or 'gone'
    elseif not line:find(' fence=' .. fences[i] .. ' ', 1, true) then
      held[i], refusals[i] = false, 'stale'
    else
      held[i], seen[id] = line, true
    end
  end
  return held, refusals, ids, fences, seen
end

--- Append one event for all refused records. `outcome` is what the worker presented.
local function emit_refused(refusals, outcome, at, by)
  local records = {}
  for i = 1, each_count do
    if refusals[i] then
      local id, fence = each(i)
      records[#records + 1] = '["' .. id .. '","' .. fence .. '","' .. outcome .. '","' .. refusals[i] .. '"]'
    end
  end
  emit('settlement_refused', at, by, records)
end
