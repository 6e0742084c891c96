--[[ tick_times: moves schedules in `ticks`, and the member `tick|` of `scheduled` together with the first of them.
Claims learn from the one member `tick|` that schedules are due, so a claim costs the same for any number of schedules.

Keys: ticks scheduled
Uses: call(now) due(earliest_due) wake(wake_needed) batch(call_many) digits(digits)
]]

local TICK = 'tick|'

local found       -- the first schedules of `ticks`, each with its time
local moved       -- name → its new time; false: it has none
local first       -- when the first member of `ticks` is due after the call; nil: `ticks` is empty then

local function reset()
  found, moved, first = nil, nil, nil
end

--- Read the schedules that are due first: as many as the call may move, and one more.
local function read_ticks(size)
  found, moved = redis.call('ZRANGE', ticks, '0', digits(size), 'WITHSCORES'), {}
end

--- Give a schedule another time; false: it has none.
local function move_tick(name, at)
  moved[name] = at
end

--- Return at most `size` schedules that are due and that the call has not moved.
local function due_ticks(size)
  local names = {}
  for at = 1, #found, 2 do
    if #names == size or tonumber(found[at + 1]) > now then
      break
    elseif moved[found[at]] == nil then
      names[#names + 1] = found[at]
    end
  end
  return names
end

--- Compute when the first schedule will be due, and wake a worker if that is earlier than any due time that workers
--- know. Call this before the first write.
local function decide_ticks()
  for at = 1, #found, 2 do
    if moved[found[at]] == nil then
      first = tonumber(found[at + 1])
      break
    end
  end
  for _, at in pairs(moved) do
    if at and (not first or at < first) then
      first = at
    end
  end
  first = first and math.max(first, now)
  local earliest = earliest_due(0)
  if first and (not earliest or first < earliest) then
    wake_needed()
  end
end

local function write_ticks()
  local added, removed = {}, {}
  for name, at in pairs(moved) do
    if at then
      added[#added + 1], added[#added + 2] = digits(at), name
    else
      removed[#removed + 1] = name
    end
  end
  call_many('ZADD', ticks, added)
  call_many('ZREM', ticks, removed)
  if first then
    redis.call('ZADD', scheduled, digits(first), TICK)
  else
    redis.call('ZREM', scheduled, TICK)
  end
end
