--[[ scopes: counts claimed jobs in scopes, and decides whether a scope has room.

A scope is the task's (`task=send`), one value of a family of keys (`tenant=acme`), or a rate (`tenant@60s=acme`, its
family named with the window). A cap of N admits N holders, which are claimed jobs. A rate has no holders: it keeps its
theoretical arrival time (GCRA: the generic cell rate algorithm of ATM traffic control). A rate may count a unit, of
which each job takes its cost (`ask.model@60s:tokens=gpt`, see include/caps/costs). A breaker is named like a rate of
failures (see include/caps/breakers); while it is open, it admits any number of jobs.

Places that a call acquires and gives back are at first only counted in Lua. If one scope refuses a job, the places in
the other scopes are given back in the same call, and nothing of this is written. Only `write_scopes` writes, at the end
of the call.

Keys: caps holders rates scheduled expiring
Meta: caps_by_key
Unread: expiring
Kept: LIMIT_SHAPES NO_LIMIT
Uses: batch(call_many add_many) meta(facts) memo(remember MEMO_MAX)
    costs(unit_of cost_in read_arrival arrival_text acquire_cost is_paused free_from)
    breakers(read_breaker breaker_entry may_probe begin_probe)
]]

local LIMIT_SHAPES = {known = {}, count = 0}
local NO_LIMIT = {said = 'null'}

local known_scopes = {}         -- name → scope, for scopes that this call has used
local rate_scopes = {}          -- the rates among them
local holders_in = {}           -- scores and members to add to `holders`
local holders_out = {}          -- members to remove from `holders`
local holders_max               -- number of members of `holders`; nil: not read yet
-- Name → limit, as `caps` has it: limits of families that were read (false: none is stored), and limits that this call
-- will store. A limit that was read for a single scope is kept in its scope.
local limits = {}
local freed_names = {}          -- scopes that holders leave; counted only once this call uses a scope
local counted_out = {}          -- name → number of holders that leave a scope that this call has not used
local is_used = false           -- whether any of these variables has changed in this call; in most calls none has

local function reset()
  if is_used then
    is_used, holders_max = false, nil
    known_scopes, rate_scopes, limits = {}, {}, {}
    holders_in, holders_out, freed_names, counted_out = {}, {}, {}, {}
  end
end

--- Return the shape of a stored limit (`10`, `none`, `100/60000ms/1`, followed by who set it): its cap or its rate, or
--- neither if it admits any number.
local function limit_shape(stored)
  local shape = LIMIT_SHAPES.known[stored]
  if shape then
    return shape
  end
  local text = stored:match('^%S+')
  local most, window_ms, burst = (text or ''):match('^(%d+)/(%d+)ms/(%d+)$')
  shape = {cap = tonumber(text), said = tonumber(text) and text or 'null', is_set = text ~= nil, rate = nil}
  if most and tonumber(most) == 0 then
    shape.cap = 0
  elseif most then
    local interval_us = math.ceil(window_ms * 1000 / most)
    shape.rate, shape.said = true, most .. ',' .. window_ms .. ',' .. burst
    shape.interval_us, shape.slack_us = interval_us, (burst - 1) * interval_us
    shape.text, shape.most, shape.burst, shape.window_us = text, tonumber(most), tonumber(burst), window_ms * 1000
  end
  return remember(LIMIT_SHAPES, stored, shape, MEMO_MAX)
end

--- Return the stored limit of a scope or, without one, of its family; nil without either.
local function limit_of(name, family)
  local own = facts.caps_by_key and name ~= family and
    (limits[name] or redis.call('HGET', caps, name))
  if not own and limits[family] == nil then
    is_used = true
    limits[family] = redis.call('HGET', caps, family)
  end
  return own or limits[family]
end

--- Return the family of a scope.
local function family_of(name)
  return name:match('^[^=]*')
end

--- Return whether claimed jobs of a scope are its holders. A rate has no holders, nor does a key of a fair queue.
local function is_counted(name)
  local family = family_of(name)
  return family ~= 'fair' and not family:find('@', 1, true)
end

--- Count that one holder leaves each of these scopes.
local function count_out(names)
  is_used = true
  for i = 1, #names do
    local name = names[i]
    local scope = known_scopes[name]
    if not scope then
      counted_out[name] = (counted_out[name] or 0) + 1
    elseif scope.left then
      local left = scope.left + 1
      scope.left = scope.most == scope.cap and left > scope.cap and scope.cap or left
    else
      scope.leaving = scope.leaving + 1
    end
  end
end

--- Count that one holder leaves each of these scopes, but only once this call uses the scope.
local function count_out_later(names)
  if next(known_scopes) or #freed_names > 0 then
    count_out(names)
  else
    is_used, freed_names = true, names
  end
end

--- Return a scope of this call: its `limit`; its `cap` (nil: any number) or `rate`; and `left`, the number of places
--- that are left, once it was asked for. While the holders are not counted, `left` is a lower bound, and `most` is the
--- bound that it began with; once they are counted, `most` is the cap. `held` is the number of holders in Redis; nil
--- until they are counted.
local function scope_of(name)
  local scope = known_scopes[name]
  if scope then
    return scope
  end
  if #freed_names > 0 then
    count_out(freed_names)
    freed_names = {}
  end
  local family = family_of(name)
  local stored
  if family == 'task' then
    stored = limits[name] or redis.call('HGET', caps, name)
  elseif family ~= 'fair' then
    stored = not facts.caps_by_key and limits[family] or limit_of(name, family)
  end
  local shape = stored and (LIMIT_SHAPES.known[stored] or limit_shape(stored)) or NO_LIMIT
  local cap, rate = shape.cap, shape.rate
  -- At most 8 fields: a table that grows beyond that costs as much as three tables.
  scope = {
    name = name, limit = shape, cap = cap, rate = rate, left = not cap and not rate and math.huge or nil,
    most = cap or math.huge, held = nil, leaving = counted_out[name] or 0,
  }
  is_used, known_scopes[name] = true, scope
  if rate then
    local spent = redis.call('HGET', rates, name)
    scope.unit, scope.arrival_us, scope.rest = unit_of(name), tonumber(spent) or 0, 0
    if scope.unit == 'failures' then
      read_breaker(scope, spent)
    elseif spent and scope.arrival_us == 0 then
      read_arrival(scope, spent)
    end
    scope.resumes = scope.rate and tonumber(redis.call('ZSCORE', scheduled, 'rate|' .. name)) or nil
    rate_scopes[#rate_scopes + 1] = scope
  end
  return scope
end

--- Return the number of holders that the scope has in Redis.
local function held_in(scope)
  local held = scope.held
  if not held then
    held = redis.call('ZLEXCOUNT', holders, '[' .. scope.name .. '|', '(' .. scope.name .. '}')
    scope.held = held
  end
  return held
end

--- Compute the number of places that are left in a capped scope, unless it is known to be more than `wanted`.
local function count_places(scope, wanted)
  local cap, left = scope.cap, scope.left
  if not left then
    -- No scope has more holders than there are members of `holders`, so holders need not be counted for a cap that is
    -- far away.
    holders_max = holders_max or redis.call('ZCARD', holders)
    local most_held = holders_max - scope.leaving
    left = most_held > 0 and cap - most_held or cap
    scope.most = left
  end
  if left <= wanted and scope.most < cap then
    local held = held_in(scope) - scope.leaving + scope.most - left
    left = held > 0 and cap - held or cap
    scope.most = cap
  end
  scope.left = left
end

--- Use this limit for a scope or a family in this call, which will store it.
local function assume_limit(name, value)
  is_used, limits[name] = true, value
end

--- Return whether another job may take a place, with `more` others before it. A rate has room unless the call or
--- `scheduled` awaits its resume.
local function has_room(scope, more)
  if scope.rate then
    return not scope.resumes
  end
  more = more or 0
  if not scope.left or scope.left <= more then
    count_places(scope, more)
  end
  return scope.left > more
end

--- Take one place in the scope, and return whether it had one. A rate without a place is awaited from now on. `costs`
--- are the job's; nil if it has none.
local function acquire(scope, at, costs)
  if not scope.rate then
    count_places(scope, 0)
    if scope.left > 0 then
      scope.left = scope.left - 1
      return true
    end
    return false
  elseif scope.breaker then
    return may_probe(scope, at)
  elseif scope.paused and is_paused(scope, at) then
    return false
  elseif scope.unit then
    return acquire_cost(scope, at, costs)
  end
  -- A rate that is awaited is tried again, too: its limit may have changed since. After a change of the limit, or if
  -- the clock went back, the arrival time may be further ahead than this limit allows. The corrected time is written:
  -- otherwise a refused rate would be as far ahead when it resumes.
  local rate = scope.limit
  local furthest = at * 1000 + rate.slack_us + rate.interval_us
  if scope.arrival_us > furthest then
    scope.arrival_us, scope.spent = furthest, true
  end
  local begins = math.max(scope.arrival_us, at * 1000)
  if begins - at * 1000 > rate.slack_us then
    scope.resumes = math.ceil((begins - rate.slack_us) / 1000)
    scope.awaited = true
    return false
  end
  scope.before_us = scope.arrival_us
  scope.arrival_us = begins + rate.interval_us
  return true
end

--- Return the time at which the first rate resumes that this call began to await; nil without one.
local function first_resume()
  local first
  for i = 1, #rate_scopes do
    local scope = rate_scopes[i]
    if scope.awaited and not (first and first <= scope.resumes) then
      first = scope.resumes
    end
  end
  return first
end

--- Stop awaiting a rate, so that it is tried again.
local function await_no_more(scope)
  if scope.resumes then
    scope.resumes, scope.awaited = nil, nil
    scope.resumed = true
  end
end

--- Undo the last `acquire` of a scope.
local function give_back(scope)
  if scope.rate then
    scope.arrival_us, scope.rest = scope.before_us, scope.before_rest   -- of a breaker: nil
  else
    scope.left = scope.left + 1
  end
end

--- Take a place in all of these scopes or in none. Returns the name of the scope that refused; nil if none did. `costs`
--- are the job's; nil if it has none.
local function acquire_all(names, at, costs)
  for i = 1, #names do
    local name = names[i]
    local scope = known_scopes[name] or scope_of(name)
    local left = scope.left
    if left and left > 0 then
      scope.left = left - 1
    elseif not acquire(scope, at, costs) then
      for k = 1, i - 1 do
        give_back(known_scopes[names[k]])
      end
      return name
    end
  end
  return nil
end

--- Add a job to the holders of its lane's scopes, in which `acquire_all` has taken places. `shape` is that of the
--- lane's name.
local function hold_all(shape, id)
  local counted, at = shape.counted or shape, #holders_in
  for i = 1, #counted do
    holders_in[at + 1], holders_in[at + 2] = '0', counted[i] .. '|' .. id
    at = at + 2
  end
  for i = 1, shape.counted and #shape or 0 do
    local scope = known_scopes[shape[i]]
    if scope.rate then
      scope.spent = true
      if scope.breaker then
        begin_probe(scope, id)
      end
    end
  end
end

--- Add a claimed job to the holders of a scope in which it took no place. Call this before any place of the scope is
--- asked for.
local function hold_uncounted(name, id)
  is_used = true
  holders_in[#holders_in + 1], holders_in[#holders_in + 2] = '0', name .. '|' .. id
  local scope = scope_of(name)
  scope.leaving = scope.leaving - 1
end

--- Remove jobs from the holders of their lanes' scopes. `shapes` are those of the lanes' names. Returns the scope of
--- each removed holder, and the places in `shapes` of lanes with breakers; nil without any.
local function unhold_all(shapes, ids)
  local names, size, before, guarded = {}, 0, #holders_out, nil
  is_used = true
  for i = 1, #shapes do
    local shape, id = shapes[i], ids[i]
    local counted = shape.counted
    if not counted then
      counted = shape
    elseif shape.breakers then
      guarded = guarded or {}
      guarded[#guarded + 1] = i
    end
    for k = 1, #counted do
      size = size + 1
      names[size], holders_out[before + size] = counted[k], counted[k] .. '|' .. id
    end
  end
  return names, guarded
end

--- Return whether this call adds or removes holders.
local function holders_change()
  return #holders_in > 0 or #holders_out > 0
end

--- Return the scopes of a lane of this shape with their limits in force, as JSON for the claimed event; '' if it has no
--- scopes. `costs` are the job's; nil if it has none.
local function limits_in_force(shape, costs)
  local first, second = shape[1], shape[2]
  if not shape.counted and #shape == 2 then
    return ',[["' .. first .. '",' .. known_scopes[first].limit.said .. '],["' .. second .. '",' .. known_scopes[second].limit.said .. ']'
  end
  local said = ''
  for i = 1, #shape do
    local name = shape[i]
    local in_force = known_scopes[name].limit
    if not shape.counted or in_force.rate or is_counted(name) then
      local unit = costs and in_force.rate and known_scopes[name].unit
      said = said .. (said == '' and ',[["' or ',["') .. name .. '",' .. in_force.said .. (unit and ',' .. cost_in(costs, unit) or '') .. ']'
    end
  end
  return said
end

--- Check the types of the keys that `write_scopes` writes without having read them. (A rate was read before a place in
--- it was taken.)
local function check_scopes()
  if holders_change() and not holders_max then
    holders_max = redis.call('ZCARD', holders)
  end
  if #rate_scopes > 0 then
    check_keys()
  end
end

--- Write the holders, the arrival times of used rates, and the times at which rates resume.
local function write_scopes()
  if not is_used then
    return
  end
  call_many('ZREM', holders, holders_out)
  add_many(holders, holders_in)
  if #rate_scopes == 0 then
    return
  end
  local arrivals, resumes, deadlines, resumed, opened, forgotten = {}, {}, {}, {}, {}, {}
  for i = 1, #rate_scopes do
    local scope, name = rate_scopes[i], rate_scopes[i].name
    local text, forget_at = nil, nil
    if scope.spent and scope.breaker then
      text, forget_at = breaker_entry(scope)
      if not text then
        opened[#opened + 1], forgotten[#forgotten + 1] = name, 'rate|' .. name
      end
    elseif scope.spent then
      text = (scope.unit or scope.paused) and arrival_text(scope) or string.format('%.0f', scope.arrival_us)
      forget_at = free_from(scope)
    end
    if text then
      arrivals[#arrivals + 1], arrivals[#arrivals + 2] = name, text
      deadlines[#deadlines + 1], deadlines[#deadlines + 2] = forget_at, 'rate|' .. name
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
  call_many('HDEL', rates, opened)
  call_many('ZREM', expiring, forgotten)
  call_many('ZREM', scheduled, resumed)
  call_many('ZADD', scheduled, resumes)
end
