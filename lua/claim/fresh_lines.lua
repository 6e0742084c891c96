--[[ fresh_lines: what the state line of a job in a lane says, if it is of the usual form. ]]

--- What a job's line says in this lane, if it is that of a job which was never claimed: its beginning up to its place in
--- line, without the state, and that place; else nil.
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

--- The place in line of a job whose line begins as that of a fresh one before it, up to its place: most jobs of a lane are of
--- one task. Nil if it does not.
local function place_behind(beginning, line)
  local size = #beginning
  return line and line:sub(1, size) == beginning and line:match('^(%d+) since=', size + 1) or nil
end
