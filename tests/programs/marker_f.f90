! Sets a marker from Fortran in two ways, and says what the program learns of it.
!
!   marker_f DIR close|touch
program marker
  implicit none
  character(len=4096) :: dir, how
  integer :: unit, status
  call get_command_argument(1, dir)
  call get_command_argument(2, how)
  if (how == 'close') then
    open(newunit=unit, file=trim(dir)//'/.complete', action='write', iostat=status)
    if (status /= 0) stop 1
    close(unit, iostat=status)
    print '(a,i0)', 'iostat ', status
  else
    call execute_command_line('touch '//trim(dir)//'/.complete', exitstat=status)
    print '(a,i0)', 'exitstat ', status
  end if
end program
