--[[ room: how much is kept for those who wait. Beyond the bound what is nearest its end goes first: its value, and its line then says
`value=evicted`; of a line without a value the line, unless its id is remembered. What a call writes stays; but if there is no room after
that, its values are left out, and their lines say `value=full`.

`kept_bytes` in `meta` counts it (see load_of in include/job/remembered), `evicted` how many results have lost their value so far.

Keys: results kept
Later: evicted
Uses: call(seldom) meta(read_now) batch(read_many)
    remembered(bound forget_line)
]]

local LOOKED_AT = '255'   -- so many results more than one are looked at in a call

--- Before the first write: decide what goes. Nothing has to be done if nothing is `seldom`.
local function make_room()
  if not seldom.kept_lines or not bound.is_passed() then
    return
  end
  read_now('evicted')
  local gone = {}
  for i = 1, seldom.forgotten and #seldom.forgotten or 0 do
    gone[seldom.forgotten[i]] = true
  end
  local ids = redis.call('ZRANGE', kept, '0', LOOKED_AT)
  local lines = read_many(results, ids)
  for i = 1, #ids do
    if not bound.is_passed() then
      return
    end
    local id, line = ids[i], lines[i]
    if line and not gone[id] then
      if not bound.evict_value(id, line) and not line:find(' once=', 1, true) then
        forget_line(id, line)
      end
    end
  end
  bound.leave_out_values()
end
