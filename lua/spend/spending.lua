--[[ spending: corrects rates by what jobs have really taken, and pauses scopes.

Args: each each_count worker
Uses: call(now) emit(emit) state(lane_in field_in) fences(read_held) lane_names(shape_of)
    costs(unit_of cost_in correct_cost pause) breakers(pause_breaker) scopes(scope_of await_no_more) lane_opening(reevaluate)
    lane_write(check_lanes write_lanes)
]]

local COST_MAX = 1000000000
local PAUSE_MAX_MS = 86400000

local settled, paused   -- the events

local function reset()
  settled, paused = nil, nil
end

--- Return nothing of a number that is at most `most`, or nil, with which gsub keeps the text.
local function within(most)
  return function(figures)
    return tonumber(figures) <= most and '' or nil
  end
end

--- Check the records. Returns a reply that refuses the call, or nil.
local function check_spends()
  local is_cost, is_pause = within(COST_MAX), within(PAUSE_MAX_MS)
  for i = 1, each_count do
    local _, _, given, pauses = each(i)
    if given ~= '' and (#given > 512 or (given .. ','):gsub('%f[%w_][%a_][%w_]*:(%d+),', is_cost) ~= '') then
      return {'refused', 'arguments', 'taken'}
    elseif pauses:gsub('%f[%w_.:~%%@=-][%w_.:~%%@=-]+|(%d+)', is_pause):find('%S') then
      return {'refused', 'arguments', 'pauses'}
    end
  end
  return nil
end

--- Correct the rates of a job with this line. Returns the units with what the job has taken, as text; nil if none of its
--- rates counts one of them. If something comes back, the job that waits for the rate may begin earlier.
local function correct_rates(line, given)
  local lane, costs, units, seen = lane_in(line), field_in(line, ' cost='), {}, {}
  local names = lane and shape_of(lane) or {}
  for i = 1, #names do
    local name = names[i]
    local unit = unit_of(name)
    local value = unit and tonumber((',' .. given):match(',' .. unit .. ':(%d+)'))
    if value then
      if not seen[unit] then
        seen[unit] = true
        units[#units + 1] = unit .. ':' .. string.format('%.0f', value)
      end
      local scope, more = scope_of(name), value - cost_in(costs, unit)
      if scope.rate and not scope.breaker then
        correct_cost(scope, now, more)
        if more < 0 then
          await_no_more(scope)
          reevaluate(name)
        end
      end
    end
  end
  return units[1] and table.concat(units, ',')
end

--- Pause scopes of a job with this line. Returns whether one of them was a rate of the job.
local function pause_scopes(id, fence, line, pauses)
  local has_paused = false
  local scopes_in = (lane_in(line) or '') .. '+'
  for name, after_ms in pauses:gmatch('%f[%w_.:~%%@=-]([%w_.:~%%@=-]+)|(%d+)') do
    local scope = scopes_in:find('+' .. name .. '+', 1, true) and scope_of(name)
    if scope and (scope.rate or scope.breaker) then
      local till = (scope.breaker and pause_breaker or pause)(scope, now, now + after_ms)
      paused[#paused + 1] = '["' .. id .. '","' .. fence .. '","' .. name .. '",' .. string.format('%.0f', till) .. ']'
      has_paused = true
    end
  end
  return has_paused
end

--- Decide about all records. Returns the answer.
local function decide_spends()
  local held, refusals = read_held()
  local answer = {}
  settled, paused = {}, {}
  for i = 1, each_count do
    local id, fence, given, pauses = each(i)
    local taken = held[i] and correct_rates(held[i], given)
    if taken then
      settled[#settled + 1] = '["' .. id .. '","' .. fence .. '","' .. taken .. '"]'
    end
    local has_paused = held[i] and pause_scopes(id, fence, held[i], pauses)
    if not taken and not has_paused then
      answer[#answer + 1], answer[#answer + 2] = id, refusals[i] or 'unknown'
    end
  end
  check_lanes()
  return answer
end

--- Append the event, and write.
local function write_spends()
  emit('cost_settled', now, worker, settled)
  emit('scope_paused', now, worker, paused)
  write_lanes()
end
