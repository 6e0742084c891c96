--[[ shown_end: ends what a job shows together with the job (see include/shown/shown). Clients that read the chunks late
have an hour for them.

Fact: shows
Keys: shown expiring
Unread: expiring
Lists: ended_shown outcomes_shown unshown last_shown late_shown
Uses: call(now now_text) parts(list_of) batch(call_many read_many) digits(digits) shown(read_shown write_shown)
]]

local lists = {}
local KEPT_MS = 3600000   -- how long chunks are kept after the end of their job

local function decide(id, _, _, outcome)
  local ids, outcomes = list_of(lists, 'ended_shown'), list_of(lists, 'outcomes_shown')
  ids[#ids + 1], outcomes[#outcomes + 1] = id, outcome == 'dies' and 'died' or 'left'
  return true
end

local function check()
  check_keys()
  local ids, outcomes = lists.ended_shown, lists.outcomes_shown
  local lines = read_many(shown, ids)
  for i = 1, #ids do
    local it = lines[i] and read_shown(lines[i])
    if it and it.from <= it.to then
      it.ending, it.ended = outcomes[i], now_text
      if outcomes[i] == 'left' then
        it.text = ''
      end
      local last, late = list_of(lists, 'last_shown'), list_of(lists, 'late_shown')
      last[#last + 1], last[#last + 2] = ids[i], write_shown(it)
      late[#late + 1], late[#late + 2] = digits(now + KEPT_MS), 'shown|' .. ids[i]
    elseif lines[i] and outcomes[i] == 'left' then
      local unshown = list_of(lists, 'unshown')
      unshown[#unshown + 1] = ids[i]
    end
  end
end

local function write()
  call_many('HSET', shown, lists.last_shown)
  call_many('HDEL', shown, lists.unshown)
  call_many('ZADD', expiring, lists.late_shown)
end
