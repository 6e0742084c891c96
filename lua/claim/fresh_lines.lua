--[[ fresh_lines: reads the state line of a job in a lane that was never claimed, if it has the usual form. ]]

--- Return, of the line of a job in this lane that was never claimed, the part before its place in line, without the
--- state; and the place; else nil.
local function fresh_head(name, line)
  if not line or #line > LINE_MAX then
    return nil
  end
  local head, lane, seq = line:match('^ready (task=.- lane=(%S+)) seq=(%d+) since=')
  if lane == name then
    return head, seq
  end
  return nil
end

--- Return the place in line of a job whose line has this beginning, up to the place: most jobs of a lane are of one
--- task. Nil if it has another.
local function place_behind(beginning, line)
  local size = #beginning
  return line and line:sub(1, size) == beginning and line:match('^(%d+) since=', size + 1) or nil
end
