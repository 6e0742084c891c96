--[[ costs: what claims take from rates that count a unit (`ask.model@60s:tokens=gpt`), and how such a rate is kept.

A job's costs are texts like `tokens:1500,points:3`; a unit that is missing costs 1. N units take N times as long as one
unit takes to come back. A claim needs room for its cost, but at most for the burst: a job that costs more than the
burst is claimed when the whole burst is free, and owes the rest.

The value of such a rate in `rates` is `ARRIVAL+REST LIMIT AT`: the arrival time (µs, and parts of a µs), the limit under
which it was computed, and Redis' time then (Unix ms). So no debt is forgiven: what is in use is counted again under
another limit, and is moved if the clock went back. A rate without a unit has a number alone, and its arrival time is
cut.

While a scope is paused, its value ends in ` until=MS`, also that of a rate without a unit: no claim begins before MS.
` by=NAME` follows if an operator paused the scope. A later pause never makes a pause shorter, and a change of the limit
does not end a pause: only an operator does. After a pause, only one of the burst is free, so jobs begin one after the
other, as fast as the rate.
]]

local ARRIVAL_MAX_US = 900000000000000000   -- some 28,000 years; Lua would write a greater number inexactly

--- Return the unit that the scope of a rate counts; nil if it counts claims.
local function unit_of(name)
  return name:match('^[^=@]*@[^=:]*:([%w_]+)')
end

--- Return how much of a unit a job takes. `costs` are its costs; nil if it has none.
local function cost_in(costs, unit)
  return costs and tonumber((',' .. costs):match(',' .. unit .. ':(%d+)')) or 1
end

--- Read the value of a rate with a unit into its scope: its arrival time (µs, and parts of a µs; the limit's
--- number of them makes one), and under which limit and when it was written.
local function read_arrival(scope, text)
  local arrival_us, rest, under, at = text:match('^(%d+)%+(%d+) (%S+) (%d+)')
  scope.arrival_us, scope.rest = tonumber(arrival_us) or 0, tonumber(rest) or 0
  scope.under, scope.written = under, tonumber(at)
  scope.paused, scope.paused_by = tonumber(text:match(' until=(%d+)')), text:match(' by=(%S+)$')
end

--- Return the value of a rate with a unit, or of one that is paused.
local function arrival_text(scope)
  local text = string.format('%.0f+%.0f %s %.0f', scope.arrival_us, scope.rest, scope.limit.text, scope.written)
  if scope.paused then
    text = text .. ' until=' .. string.format('%.0f', scope.paused) .. (scope.paused_by and ' by=' .. scope.paused_by or '')
  end
  return text
end

--- Let a rate's arrival time be that of now, and of its limit in force.
local function bring_forward(scope, at)
  local before, rate = scope.written, scope.limit
  if before and before > at then
    scope.arrival_us, scope.spent = scope.arrival_us - (before - at) * 1000, true
    scope.paused = scope.paused and scope.paused - (before - at)
  end
  if scope.under and scope.under ~= rate.text then
    local most, window_ms = scope.under:match('^(%d+)/0*([1-9]%d*)ms/')
    local ahead_us = scope.arrival_us - at * 1000
    if most and ahead_us > 0 then
      scope.arrival_us = at * 1000 + math.ceil(ahead_us * most / (window_ms * 1000) * rate.window_us / rate.most)
    end
    scope.rest, scope.spent = 0, true
  end
  scope.under, scope.written = rate.text, at
end

--- Add so much to what is in use of a rate. Nothing is rounded: a rate that is used all the time would fall behind.
local function use(scope, cost)
  local rate = scope.limit
  local total = scope.rest + cost * rate.window_us
  scope.rest = total % rate.most
  scope.arrival_us = math.min(scope.arrival_us + (total - scope.rest) / rate.most, ARRIVAL_MAX_US)
end

--- Let a rate be free from this time (µs) on, unless it is in use until later.
local function begin_at(scope, from_us)
  if scope.arrival_us < from_us then
    scope.arrival_us, scope.rest = from_us, 0
  end
end

--- Return the time (µs) until which all of a rate but one is in use after its pause.
local function empty_until(scope)
  local rate = scope.limit
  local ahead = (rate.burst - 1) * rate.window_us
  return scope.paused * 1000 + (ahead - ahead % rate.most) / rate.most
end

--- Return whether a scope is paused. It is awaited then until its pause ends.
local function is_paused(scope, at)
  bring_forward(scope, at)
  if scope.paused > at then
    scope.resumes, scope.awaited = scope.paused, true
    return true
  end
  begin_at(scope, empty_until(scope))
  scope.paused, scope.paused_by = nil, nil
  return false
end

--- Pause a rate until a moment (Unix ms), unless a pause is in force that ends later. Returns when its pause ends.
local function pause(scope, at, till)
  bring_forward(scope, at)
  if till > (scope.paused or 0) then
    scope.paused, scope.paused_by = till, nil
  end
  scope.resumes = scope.paused
  scope.spent, scope.awaited, scope.resumed = true, true, nil
  return scope.paused
end

--- End the pause of a rate. What is in use of the rate stays.
local function unpause(scope, at)
  bring_forward(scope, at)
  scope.paused, scope.paused_by, scope.spent = nil, nil, true
end

--- Return when a rate can be forgotten (Unix ms): it is unused then, and no pause is in force.
local function free_from(scope)
  local from_us = scope.paused and math.max(scope.arrival_us, empty_until(scope)) or scope.arrival_us
  return math.ceil(from_us / 1000)
end

--- Take the cost of a job from a rate with a unit, and return whether it had room. While a job waits for the rate, no
--- other takes from it: many cheap jobs could let a dear one wait for ever.
local function acquire_cost(scope, at, costs)
  if scope.resumes and scope.resumes > at then
    return false
  end
  bring_forward(scope, at)
  local rate, cost, now_us = scope.limit, cost_in(costs, scope.unit), at * 1000
  local before_us, before_rest = scope.arrival_us, scope.rest
  begin_at(scope, now_us)
  local slack_us = math.floor(((rate.burst - math.min(cost, rate.burst)) * rate.window_us - scope.rest) / rate.most)
  if scope.arrival_us - now_us > slack_us then
    scope.resumes = math.ceil((scope.arrival_us - slack_us) / 1000)
    scope.awaited = true
    return false
  end
  scope.before_us, scope.before_rest = before_us, before_rest
  use(scope, cost)
  return true
end

--- Take so much more from a rate than a claim took; less than 0 comes back. What comes back fills the burst at most.
local function correct_cost(scope, at, more)
  bring_forward(scope, at)
  begin_at(scope, at * 1000)
  use(scope, more)
  begin_at(scope, at * 1000)
  scope.spent = true
end
