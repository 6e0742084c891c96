--[[ breakers: scopes that pause when a service fails (`ask.host@60s:failures=h1`), and how `rates` keeps them.

The limit of a breaker is `FAILURES/WINDOWms/COOLDOWN`: the failure that is the last of FAILURES within the window pauses
the scope for the cooldown (ms). Then one job begins, the probe. Its success opens the scope, and its failure pauses it
again. If it ends in another way, the next job is the probe.

An entry of `rates` is `AT failed=TIMES` while the scope is open, with the times of its failures; `AT until=MS` while it
is paused, and then until a probe begins; and `AT until=MS probe=ID` while that job's claim is in force. ` by=NAME` is
last if an operator paused it. AT is Redis' time when the entry was written: if the clock went back, all times of the entry
are moved back by the same number of ms. A scope without an entry is open.

Keys: state
Uses: state(lane_in)
]]

local FAILED_MAX = 1000     -- maximum number of failures that an entry has, and that pause a scope
local LOOK_MS = 5000        -- ms after which a claim looks whether the probe still runs; each end of a claim says so at once
local KEPT_MS = 86400000    -- ms for which a scope whose pause is over awaits a probe; then it is open again

--- Return whether a scope is that of a breaker.
local function is_breaker(name)
  return name:match('^[^=@]*@[^=:]*:([%w_]+)') == 'failures'
end

--- Let a scope admit any number of jobs.
local function admit_all(scope)
  scope.paused, scope.paused_by, scope.probe = nil, nil, nil
  scope.rate, scope.left = nil, math.huge
end

--- Read an entry into its scope; `text` is false without one.
local function read_breaker(scope, text)
  text = text or ''
  scope.breaker, scope.unit = true, nil
  scope.written, scope.failed = tonumber(text:match('^%d+')), text:match(' failed=(%S+)') or ''
  scope.paused, scope.probe = tonumber(text:match(' until=(%d+)')), text:match(' probe=(%S+)')
  scope.paused_by = text:match(' by=(%S+)$')
  if not scope.paused then
    admit_all(scope)
  end
end

--- Return the entry of a scope, and when to forget it (Unix ms); nil if it needs none.
local function breaker_entry(scope)
  local text = string.format('%.0f', scope.written)
  if scope.paused then
    local probe = scope.probe and ' probe=' .. scope.probe or ''
    text = text .. ' until=' .. string.format('%.0f', scope.paused) .. probe
    return scope.paused_by and text .. ' by=' .. scope.paused_by or text, math.max(scope.paused, scope.written) + KEPT_MS
  elseif scope.failed ~= '' then
    return text .. ' failed=' .. scope.failed, scope.written + scope.limit.window_us / 1000
  end
  return nil
end

--- Move the times of a scope if the clock went back.
local function bring_times_forward(scope, at)
  local back = (scope.written or at) - at
  if back > 0 then
    scope.paused, scope.spent = scope.paused and scope.paused - back, true
    scope.failed = scope.failed:gsub('%d+', function(time)
      return string.format('%.0f', time - back)
    end)
  end
  scope.written = at
end

--- Return whether a job's claim in a scope is in force.
local function is_claimed_in(name, id)
  local line = redis.call('HGET', state, id)
  return line and line:find(' fence=', 1, true) and ((lane_in(line) or '') .. '+'):find('+' .. name .. '+', 1, true)
end

--- Return whether a job may begin as the probe of a scope that is not open. The scope is awaited if it may not.
local function may_probe(scope, at)
  if scope.begun then
    return false
  end
  bring_times_forward(scope, at)
  if scope.paused > at then
    scope.resumes = scope.paused
  elseif scope.probe and is_claimed_in(scope.name, scope.probe) then
    scope.resumes = at + LOOK_MS
  else
    return true
  end
  scope.awaited = true
  return false
end

--- Let a claimed job be the probe of a scope.
local function begin_probe(scope, id)
  scope.probe, scope.begun = id, true
  scope.resumes, scope.awaited = scope.written + LOOK_MS, true
end

--- Pause a scope until a moment (Unix ms), unless a pause is in force that ends later. Returns when its pause ends.
local function pause_breaker(scope, at, till)
  bring_times_forward(scope, at)
  if till > (scope.paused or 0) then
    scope.paused, scope.paused_by = till, nil
  end
  scope.resumes, scope.failed = scope.paused, ''
  scope.rate, scope.left = true, nil
  scope.spent, scope.awaited, scope.resumed = true, true, nil
  return scope.paused
end

--- Open a scope that is paused, or that awaits the end of its probe.
local function open_breaker(scope, at)
  bring_times_forward(scope, at)
  admit_all(scope)
  scope.spent = true
end

--- Note a failure in an open scope. Returns when the pause ends, if this failure begins one.
local function note_failure(scope, at)
  bring_times_forward(scope, at)
  local allowed, times = scope.limit, {}
  for time in scope.failed:gmatch('%d+') do
    if tonumber(time) > at - allowed.window_us / 1000 then
      times[#times + 1] = time
    end
  end
  times[#times + 1] = string.format('%.0f', at)
  if #times >= math.min(allowed.most, FAILED_MAX) then
    return pause_breaker(scope, at, at + allowed.burst)
  end
  scope.failed, scope.spent = table.concat(times, ','), true
  return nil
end

--- Note that a job's claim in a scope ends: `how` is succeeded, failed or neither. Returns whether a job may begin now,
--- and when the pause ends, if this end begins one.
local function end_in_breaker(scope, id, at, how)
  if not scope.paused then
    return false, how == 'failed' and note_failure(scope, at) or nil
  elseif scope.probe ~= id then
    return false, nil
  end
  bring_times_forward(scope, at)
  scope.probe, scope.spent = nil, true
  if how == 'failed' then
    return false, pause_breaker(scope, at, at + scope.limit.burst)
  elseif how == 'succeeded' and scope.paused <= at then
    admit_all(scope)
  end
  return not scope.paused or scope.paused <= at, nil
end
