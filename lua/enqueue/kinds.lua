--[[ kinds: parses the kinds of a call. A kind is the part that many jobs have in common: a JSON array of [priority,
delay in ms, head, detail, full], which may be followed by the instant (Unix ms) at which the job becomes ready in place
of the delay (or 0), and by an object, the job's ties.

HEAD is the text after the state in the line of such a job. DETAIL has the fields of its event up to the opening quote
of the digest. FULL has the rules for full scopes. A priority is valid if `ready` has a list for it.

Ties: `expires_in` (ms from now) or `expires_at` (Unix ms): no claim of the job begins at this time or later. `unique`
(keep, replace or reject): the job has a name, and this is the rule if another job holds the name; with reject, an id
whose job is kept out is not remembered. `window`: the job holds the name for this many ms from now, even after its end.
`after` and `most`: the job is due `after` ms from now, but at most `most` ms after the first of the jobs that replaced
one another; it holds its name until its first claim. `remember` (ms from now): the job's id is remembered, see
include/results/idempotency. `unclaimed` (1, only with `remember`): the job is a duplicate, too, if the outcome of a
job of its id is kept that left before its first claim. `cost` (`tokens:1500,points:3`): how much of each unit a claim
of the job takes from the rates that count the unit, see include/caps/costs. Each trait in GIVEN, under its name in a state line: it is copied into the job's line and
its event. `keep` (ms from the job's end): its result is kept, see include/results/results.

A job that is ready at once, and whose ties have only traits in GIVEN, waits like a plain one: its `head` includes these
traits, and `behind` is the text after the JSON in its event. `is_call`: it is ready at once, and has no other ties than
`remember` and traits in GIVEN. For other jobs, `given` has each trait as JSON for the
event (false: not given), and `given_line` has the traits for the line.

After the kinds may stand a text: the reason of the call, for the log.

Keys: ready
Kept: KINDS NO_TIES WAYS
Uses: digits(digits) memo(remember) array(rest_of_array) emit(quoted)
]]

local NO_TIES = {}
local WAYS = {keep = true, replace = true, reject = true}

local KINDS = {known = {}, count = 0}
local KINDS_MAX = 256
local KINDS_LENGTH_MAX = 1000
local COSTS_LENGTH_MAX = 512
local COST_MAX = 1000000000

--- Return whether a value is a whole number or nil.
local function is_number_or_nil(value)
  return value == nil or type(value) == 'number' and whole_number(value) ~= nil
end

--- Return whether a value is nil, or one that a line can have for this trait.
local function is_trait_or_nil(name, value)
  if NUMBERS[name] then
    return is_number_or_nil(value)
  end
  return value == nil or type(value) == 'string' and value:match('^%S+$') ~= nil
end

--- Return whether a value is nil, or the costs of a job: `UNIT:N`, with commas between them, each unit once.
local function is_costs_or_nil(value)
  if type(value) ~= 'string' then
    return value == nil
  end
  local seen = {}
  local left = (value .. ','):gsub('%f[%w_]([%a_][%w_]*):([1-9]%d*),', function(unit, cost)
    if seen[unit] or tonumber(cost) > COST_MAX then
      return nil
    end
    seen[unit] = true
    return ''
  end)
  return value ~= '' and #value <= COSTS_LENGTH_MAX and left == ''
end

--- Return the traits in GIVEN that ties have: as text for a line, empty without any, and, by trait, as JSON for
--- the event. Return nil if a line cannot have one of them.
local function given_in(ties)
  local line, said = '', {}
  for at = 1, #TRAITS do
    said[at] = false
  end
  for i = 1, #GIVEN do
    local name = GIVEN[i]
    local value = ties[name]
    if not is_trait_or_nil(name, value) then
      return nil, nil
    elseif value ~= nil then
      value = NUMBERS[name] and digits(value) or value
      line, said[TRAIT_AT[name]] = line .. ' ' .. name .. '=' .. value, NUMBERS[name] and value or quoted(value)
    end
  end
  return line, said
end

--- Return a kind with named fields; nil for an invalid one.
local function kind_from(record)
  if type(record) ~= 'table' or #record < 5 or #record > 7 then
    return nil
  end
  local priority, delay_ms, head, detail, full, due_ms, ties = unpack(record)
  ties = ties or NO_TIES
  local task = type(head) == 'string' and head:match('^task=%S+')
  if not task or not ready[priority] or type(delay_ms) ~= 'number' or not whole_number(delay_ms) or
    type(detail) ~= 'string' or type(full) ~= 'string' or
    not is_number_or_nil(due_ms) or type(ties) ~= 'table' or
    not is_number_or_nil(ties.remember) or not is_number_or_nil(ties.unclaimed) or ties.unclaimed and not ties.remember or
    not is_number_or_nil(ties.expires_in) or not is_number_or_nil(ties.expires_at) or
    ties.unique ~= nil and not WAYS[ties.unique] or not is_number_or_nil(ties.window) or
    not is_number_or_nil(ties.after) or not is_number_or_nil(ties.most) or (ties.after == nil) ~= (ties.most == nil) or not is_costs_or_nil(ties.cost) then
    return nil
  end
  local given_line, said = given_in(ties)
  if not given_line then
    return nil
  end
  due_ms = due_ms ~= 0 and due_ms or nil
  local is_due_later, behind = due_ms ~= nil or delay_ms > 0, nil
  if given_line ~= '' and not (is_due_later or ties.expires_in or ties.expires_at or ties.unique or ties.remember or ties.cost) then
    head, behind = head .. given_line, rest_of_array(said, #TRAITS)
  end
  return {priority = priority, delay_ms = delay_ms, due_ms = due_ms, head = head, detail = detail, full = full,
    task = task, may_wait = is_due_later or ties ~= NO_TIES and not behind, behind = behind, has_rules = ties.unique ~= nil or full ~= '',
    has_line = ties ~= NO_TIES and not behind,
    is_call = ties.remember ~= nil and not (is_due_later or ties.expires_in or ties.expires_at or ties.unique or ties.cost),
    ties = ties ~= NO_TIES, expires_in = ties.expires_in, expires_at = ties.expires_at, unique = ties.unique,
    window = ties.window, after = ties.after, most = ties.most, remember = ties.remember, unclaimed = ties.unclaimed, keep = ties.keep, cost = ties.cost,
    given = said, given_line = given_line}
end

--- Return the kinds, by their place (from '1', as text), and the reason at the number 0; nil if a kind is invalid.
--- Successive calls often have the same kinds, so the result for a short text is remembered.
local function kinds_from(text)
  if KINDS.known[text] then
    return KINDS.known[text]
  end
  local good, list = pcall(cjson.decode, text)
  if not good or type(list) ~= 'table' then
    return nil
  end
  local by_place, size = {}, #list
  if type(list[size]) == 'string' then
    by_place[0], size = list[size], size - 1
  end
  for i = 1, size do
    local kind = kind_from(list[i])
    if not kind then
      return nil
    end
    by_place[digits(i)] = kind
  end
  if #text <= KINDS_LENGTH_MAX then
    remember(KINDS, text, by_place, KINDS_MAX)
  end
  return by_place
end
