--[[ breakers: scopes that pause when a service fails (`ask.host@60s:failures=h1`), and how `rates` keeps them.

The limit of a breaker is `FAILURES/WINDOWms/COOLDOWN`. If FAILURES failures come within the window, the last of them
pauses the scope for the cooldown (ms). Then one job begins, the probe. The probe's success opens the scope, and its
failure pauses the scope again. If the probe ends in another way, the next job is the probe.

A scope without an entry in `rates` is open. Otherwise the entry is:
- `AT failed=TIMES` while the scope is open: the times of its failures.
- `AT until=MS` while the scope is paused, and after that until a probe begins.
- `AT until=MS probe=ID` while the claim of that job, the probe, is in force.
If an operator paused the scope, ` by=NAME` is last. AT is Redis' time when the entry was written. If the clock went
back, all times of the entry are moved back by the same number of ms.

Keys: state
Uses: state(lane_in)
]]

local FAILED_MAX = 1000     -- maximum number of failures that an entry has, and that pause a scope
local LOOK_MS = 5000        -- ms after which a claim looks whether the probe still runs, if no call noted its end
local KEPT_MS = 86400000    -- ms for which a scope awaits a probe after its pause; then the scope is open again

--- Return whether a scope belongs to a breaker.
local function is_breaker(name)
  return name:match('^[^=@]*@[^=:]*:([%w_]+)') == 'failures'
end

--- Let a scope admit any number of jobs.
local function admit_all(scope)
  scope.paused, scope.paused_by, scope.probe = nil, nil, nil
  scope.rate, scope.left = nil, math.huge
end

--- Read an entry into its scope; `text` is false if there is no entry.
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

--- Return the entry of a scope, and when to forget it (Unix ms); nil if the scope needs no entry.
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

--- Return whether a job may begin as the probe of a scope that is not open. If not, lanes await the scope.
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

--- Pause a scope until a moment (Unix ms), unless a pause that ends later is in force. Returns when the pause in force
--- ends.
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
