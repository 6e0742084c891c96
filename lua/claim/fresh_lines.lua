--[[ fresh_lines: reads the state line of a job in a lane that was never claimed, if it has the usual form. ]]

--- Parse the line of a job in this lane. If the job was never claimed and the line has the usual form, return the text
--- between the state and the place in line, and the place; else nil.
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

--- Return the place in line of a job whose line has this beginning up to the place; nil if the line has another
--- beginning. Most jobs of a lane are of one task, so their lines begin alike.
local function place_behind(beginning, line)
  local size = #beginning
  return line and line:sub(1, size) == beginning and line:match('^(%d+) since=', size + 1) or nil
end
