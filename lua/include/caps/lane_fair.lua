--[[ lane_fair: orders the lanes of a fair queue: by the virtual time of a lane's key, not by the place in line of its
head (start-time fair queueing: Goyal, Vin, Cheng 1996).

Keys: caps fair
Meta: fair
Later: fair_clock fair_top
Uses: meta(facts fact set_fact) batch(call_many) lane_names(base_of shape_of) lane_states(reorder)
]]

local FAIR_STEP = 10000 -- virtual time that one job of weight 1 takes

local finishes = {}     -- key → virtual finish time, for keys that were read
local weights = {}      -- key → weight, for the same keys
local finished = {}     -- keys whose finish time changed
local is_used = false   -- whether this call has read a finish time

local function reset()
  if is_used then
    is_used, finishes, weights, finished = false, {}, {}, {}
  end
end

--- Return the virtual finish time of a key in a fair queue.
local function finish_of(key)
  key = key or ''
  if not finishes[key] then
    is_used = true
    finishes[key] = tonumber(redis.call('ZSCORE', fair, key)) or 0
  end
  return finishes[key]
end

local function weight_of(key)
  if not weights[key] then
    local stored = redis.call('HGET', caps, 'weight=' .. key)
    weights[key] = math.max(1, stored and tonumber(stored:match('^%d+')) or 1)
  end
  return weights[key]
end

local function is_fair()
  return facts.fair == '1'
end

--- Return the order of a lane whose next job has this place in line.
local function order_of(name, seq)
  if not is_fair() then
    return base_of(name) + seq
  end
  return base_of(name) + math.max(fact('fair_clock'), finish_of(shape_of(name).key))
end

--- Advance the clock and the finish time of the lane's key, since a job is taken from the lane.
local function serve_fairly(lane)
  local base = base_of(lane.name)
  local tag = lane.order - base
  if tag > fact('fair_clock') then
    set_fact('fair_clock', tag)
  end
  -- The new time counts from the clock on, even if the lane was blocked before: a key saves up nothing while it waits.
  local key = lane.shape.key or ''
  local finish = math.max(fact('fair_clock'), finish_of(key)) + math.ceil(FAIR_STEP / weight_of(key))
  finishes[key] = finish
  finished[key] = true
  if finish > fact('fair_top') then
    set_fact('fair_top', finish)
  end
  if lane.where then
    reorder(lane, base + finish)
  end
end

local function write_fair()
  if not is_used or not next(finished) then
    return
  end
  local times = {}
  for key in pairs(finished) do
    times[#times + 1], times[#times + 2] = string.format('%.0f', finishes[key]), key
  end
  call_many('ZADD', fair, times)
end
