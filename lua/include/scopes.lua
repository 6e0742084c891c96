--[[ scopes: what counts claimed jobs, and how many it takes.

A scope is the task's (`task=send`), one value of a family of keys (`tenant=acme`), or a rate (`tenant@60s=acme`, its
family named with the window). A cap counts its holders, a set of claimed jobs; a rate keeps its theoretical arrival
time (GCRA: the generic cell rate algorithm of ATM traffic control) and has no holders. A cap of N takes N.

Nothing is written here: what a call acquires and gives back is counted on in Lua, so that one scope that refuses undoes
the others in the same call and nothing of it reaches Redis. `write_scopes` writes what is left in the end.

Keys: caps holders rates scheduled expiring
Meta: caps_by_key
Uses: batch meta memo
]]

local SHAPES_MAX = 4000   -- names, and limits, that are remembered

local known_scopes = {}
local rate_scopes = {}    -- those of them that are rates
local holders_in, holders_out = {}, {}
local all_holders = nil

local LIMIT_SHAPES = {known = {}, count = 0}

--- What a stored limit says (`10`, `none`, `100/60000ms/1`, and who set it): the cap or the rate that it is; neither
--- if it takes any number.
local function limit_shape(stored)
  local shape = LIMIT_SHAPES.known[stored]
  if shape then
    return shape
  end
  local limit = stored:match('^%S+')
  local most, window_ms, burst = (limit or ''):match('^(%d+)/(%d+)ms/(%d+)$')
  shape = {cap = tonumber(limit), said = tonumber(limit) and limit or 'null', is_set = limit ~= nil, rate = nil}
  if most and tonumber(most) == 0 then
    shape.cap = 0
  elseif most then
    local interval_us = math.ceil(window_ms * 1000 / most)
    shape.rate, shape.said = true, most .. ',' .. window_ms .. ',' .. burst
    shape.interval_us, shape.slack_us = interval_us, (burst - 1) * interval_us
  end
  return remember(LIMIT_SHAPES, stored, shape, SHAPES_MAX)
end

local NO_LIMIT = {said = 'null'}

--- The stored limit of a scope or a family, nil if there is none. What this call has read, or is going to store, is in
--- `families`.
local families = {}
local function limit_of(name, family)
  local own = facts.caps_by_key and name ~= family and
    (families[name] or redis.call('HGET', caps, name))
  if not own and families[family] == nil then
    families[family] = redis.call('HGET', caps, family)
  end
  return own or families[family]
end

local SCOPE_SHAPES = {known = {}, count = 0}

--- What a scope's name says.
local function scope_shape(name)
  local shape = SCOPE_SHAPES.known[name]
  if shape then
    return shape
  end
  local family = name:match('^[^=]*')
  shape = {
    family = family, is_counted = family ~= 'fair' and not family:find('@', 1, true),
    first = '[' .. name .. '|', last = '(' .. name .. '}', said_of = nil, said = nil,
  }
  return remember(SCOPE_SHAPES, name, shape, SHAPES_MAX)
end

--- Whether claimed jobs of a scope are its holders. Those of a rate are not, nor those of a fair queue's key.
local function is_counted(name)
  return scope_shape(name).is_counted
end

--- Holders of scopes that have not been looked at yet, and that leave in this call.
local counted_out = {}

--- A holder leaves the scope.
local function count_out(name)
  if known_scopes[name] then
    known_scopes[name].delta = known_scopes[name].delta - 1
  else
    counted_out[name] = (counted_out[name] or 0) - 1
  end
end

--- What is known of a scope in this call: its `limit`, the `cap` (nil: it takes any number) or the `rate` that it is, and
--- what was counted on.
local function scope_of(name)
  local scope = known_scopes[name]
  if scope then
    return scope
  end
  local shape = scope_shape(name)
  local stored
  if shape.family == 'task' then
    stored = families[name] or redis.call('HGET', caps, name)
  elseif shape.family ~= 'fair' then
    stored = limit_of(name, shape.family)
  end
  local limit = stored and limit_shape(stored) or NO_LIMIT
  scope = {
    name = name, shape = shape, limit = limit, cap = limit.cap, rate = limit.rate, delta = counted_out[name] or 0,
    stored = nil,
  }
  known_scopes[name] = scope
  if scope.rate then
    scope.arrival_us = tonumber(redis.call('HGET', rates, name)) or 0
    scope.resumes = tonumber(redis.call('ZSCORE', scheduled, 'rate|' .. name))
    rate_scopes[#rate_scopes + 1] = scope
  end
  return scope
end

--- How many hold the scope, with what this call has decided.
local function held_in(scope)
  if not scope.stored then
    scope.stored = redis.call('ZLEXCOUNT', holders, scope.shape.first, scope.shape.last)
  end
  return math.max(0, scope.stored + scope.delta)
end

--- True if another job may take it now, and `more` others before it. A rate has room unless its resume is awaited.
local function has_room(scope, more)
  if scope.rate then
    return not scope.resumes
  elseif not scope.cap then
    return true
  end
  more = more or 0
  if not scope.stored then
    -- No scope can have more holders than there are: a cap that is far away need not be counted.
    all_holders = all_holders or redis.call('ZCARD', holders)
    local most = all_holders + scope.delta
    if (most > 0 and most or 0) + more < scope.cap then
      return true
    end
  end
  return held_in(scope) + more < scope.cap
end

--- Take one place in the scope, if it has one. A rate that says later is from now on awaited.
local function acquire(scope, at)
  if not scope.rate and not has_room(scope) then
    return false
  end
  if scope.rate then
    -- Asked anew even if its resume is awaited: the limit may have changed since.
    -- After a change of the limit the time may lie further ahead than any that this limit gives.
    local limit = scope.limit
    local furthest = at * 1000 + limit.slack_us + limit.interval_us
    local begins = math.max(math.min(scope.arrival_us, furthest), at * 1000)
    if begins - at * 1000 > limit.slack_us then
      scope.resumes = math.ceil((begins - limit.slack_us) / 1000)
      scope.awaited = true
      return false
    end
    scope.before_us = scope.arrival_us
    scope.arrival_us = begins + limit.interval_us
  else
    scope.delta = scope.delta + 1
  end
  return true
end

--- A rate that was awaited is tried again now.
local function await_no_more(scope)
  if scope.resumes then
    scope.resumes, scope.awaited = nil, nil
    scope.resumed = true
  end
end

--- Undo the last acquire.
local function give_back(scope)
  if scope.rate then
    scope.arrival_us = scope.before_us
  else
    scope.delta = scope.delta - 1
  end
end

--- Take a place in all of these scopes or in none. Returns the scope that refused, if one did.
local function acquire_all(wanted, at)
  for i = 1, #wanted do
    if not acquire(wanted[i], at) then
      for k = 1, i - 1 do
        give_back(wanted[k])
      end
      return wanted[i].name
    end
  end
  return nil
end

--- A job holds these scopes from now on.
local function hold(taken, id)
  for i = 1, #taken do
    local scope = taken[i]
    if scope.shape.is_counted then
      holders_in[#holders_in + 1] = scope.name .. '|' .. id
    elseif scope.rate then
      scope.spent = true
    end
  end
end

--- The scopes and the limits in force, as a claimed event carries them; `[]` without the brackets.
local function limits_in_force(taken)
  local text
  for i = 1, #taken do
    local scope, shape = taken[i], taken[i].shape
    if scope.rate or shape.is_counted then
      if shape.said_of ~= scope.limit then
        shape.said_of, shape.said = scope.limit, '["' .. scope.name .. '",' .. scope.limit.said .. ']'
      end
      text = text and text .. ',' .. shape.said or shape.said
    end
  end
  return text or ''
end

--- Whether anything here will be written; then all its keys are checked, since after the first write nothing may fail.
local function check_scopes()
  redis.call('ZCARD', holders)
  redis.call('HLEN', rates)
end

--- Write the holders, and what rates were spent or are awaited.
local function write_scopes()
  call_many('ZREM', holders, holders_out)
  add_all(holders, '0', holders_in)
  if #rate_scopes == 0 then
    return
  end
  local arrivals, resumes, deadlines, resumed = {}, {}, {}, {}
  for i = 1, #rate_scopes do
    local scope, name = rate_scopes[i], rate_scopes[i].name
    if scope.spent then
      arrivals[#arrivals + 1], arrivals[#arrivals + 2] = name, string.format('%.0f', scope.arrival_us)
      deadlines[#deadlines + 1] = math.ceil(scope.arrival_us / 1000)
      deadlines[#deadlines + 1] = 'rate|' .. name
    end
    if scope.resumed then
      resumed[#resumed + 1] = 'rate|' .. name
    end
    if scope.awaited then
      resumes[#resumes + 1], resumes[#resumes + 2] = scope.resumes, 'rate|' .. name
    end
  end
  call_many('HSET', rates, arrivals)
  call_many('ZADD', expiring, deadlines)
  call_many('ZREM', scheduled, resumed)
  call_many('ZADD', scheduled, resumes)
end
